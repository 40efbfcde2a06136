"""Make stand-ins for the CUDA libraries that PyPI's Linux torch links but a CPU never calls. Off unless asked for.

PyPI has no CPU build of torch for Linux on x86-64: the CUDA build links its libraries hard, 2 GB of download and 3 GB
on disk. ``make setup CUDA_STANDINS=1`` leaves out the packages in ``requirements/cuda-standins.txt`` and runs this
after each install.

In: a virtual environment (the one whose Python runs this) with torch, nvidia-cuda-runtime, nvidia-cuda-cupti and
nvidia-cufile. Out: for each linked CUDA library that is not there, a small shared object with its name, its symbol
version and the functions that torch wants of it; each returns 1, an error in every CUDA library, so that ``.cuda()``
raises. Libraries that are there are left alone, and stand-ins of an earlier run are made anew. Needs gcc and readelf.
Where an index with CPU builds of torch can be reached, use that instead (``TORCH_CPU_INDEX=URL``).
"""

import collections
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

CUDA = r"(lib(?:cu|nv|nccl)[\w.-]+)"
UNVERSIONED = re.compile(r"(nccl|curand|cusparseLt)")
"""Functions of libraries whose symbols carry no version."""
GPU_ONLY = {"libcaffe2_nvrtc.so", "libtorch_cuda_linalg.so"}
"""Loaded by torch on a GPU only."""
MARK = "whippletree_stand_in"
"""A symbol in each stand-in, by which it is known again."""


def readelf(flag: str, library: Path) -> str:
    """What readelf says about a shared object."""
    return subprocess.check_output(["readelf", flag, "-W", library], text=True)


def wanted(libraries: list[Path]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """What these link: {soname: symbol version}, and {symbol version: functions}; "" stands for no version."""
    versions: dict[str, str] = {}
    functions: dict[str, set[str]] = collections.defaultdict(set)
    for library in libraries:
        needed = re.findall(rf"NEEDED.*\[{CUDA}\]", readelf("-d", library))
        versions |= {soname: versions.get(soname, soname) for soname in needed}
        versions |= dict(re.findall(rf"File: {CUDA}.*\n.*Name: (\S+)", readelf("-V", library)))
        for name, version in re.findall(r" UND (\w+)(?:@(\S+))?", readelf("--dyn-syms", library)):
            functions[version].add(name)
    return versions, functions


def is_real(library: Path) -> bool:
    """Whether this is a library of NVIDIA's and not one of ours."""
    return MARK.encode() not in library.read_bytes() if library.stat().st_size < 1_000_000 else True


def compile_library(out: Path, soname: str, version: str, names: set[str]) -> None:
    """Write the stand-in `out/soname`."""
    script = out / "stand_in.map"
    script.write_text(f"{version} {{ global: *; }};\n")
    code = "".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted({*names, MARK}))
    flags = ["-shared", "-nostdlib", "-w", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}"]
    try:
        subprocess.run(["gcc", *flags, "-x", "c", "-", "-o", out / soname], input=code, text=True, check=True)
    finally:
        script.unlink()


def main() -> None:
    """Make what is missing; exits with a reason where it can not."""
    site = Path(sysconfig.get_paths()["purelib"])
    absent = [tool for tool in ("gcc", "readelf") if shutil.which(tool) is None]
    if absent:
        sys.exit(f"stand-ins for CUDA libraries need {' and '.join(absent)}")
    libraries = [path for path in (site / "torch/lib").glob("*.so") if path.name not in GPU_ONLY]
    if not libraries:
        sys.exit(f"no torch in {site}")
    out = site / "nvidia/cu13/lib"  # on the run path of every torch library
    out.mkdir(parents=True, exist_ok=True)
    versions, functions = wanted(libraries)
    loose = {name for name in functions[""] if UNVERSIONED.match(name)}
    made = 0
    for soname, version in sorted(versions.items()):
        if any(is_real(path) for path in site.glob(f"nvidia/*/lib/{soname}")):
            continue
        compile_library(out, soname, version, functions[version] | (loose if soname.startswith("libnccl") else set()))
        made += 1
    print(f"{made} CUDA libraries replaced by stand-ins")


if __name__ == "__main__":
    main()
