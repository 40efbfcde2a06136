"""Models that are looked for before SGLang's own list of 250, whose import takes 5 CPU-seconds.

Named by ``SGLANG_EXTERNAL_MODEL_PACKAGE``. An architecture that is not here is found in SGLang's list as ever.
"""
