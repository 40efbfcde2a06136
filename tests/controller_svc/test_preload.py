"""The warm-up module leaves nothing behind but speed."""

from pathlib import Path

from tests.fakes.processes import bench, program, script

WARM = ("openai", "controller_svc.preload.openai_client")


async def test_a_warm_agent_imports_nothing_to_make_a_call(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "agent.py",
        """
        import sys
        before = set(sys.modules)
        import openai, threading
        client = openai.OpenAI(base_url='http://127.0.0.1:9/v1', api_key='k', max_retries=0)
        try:
            client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'x'}])
        except openai.APIConnectionError:
            print(sorted(set(sys.modules) - before), threading.active_count())
        """,
    )
    async with bench(tmp_path / "w") as runner:
        end, output = await runner.run("r", program(path, preload=WARM))
    assert (end.code, output) == (0, {"stdout": "[] 1\n"})
