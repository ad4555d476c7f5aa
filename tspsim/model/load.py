"""Load a model: a catalog entry, or the ``config.json`` of a Hugging Face decoder."""

from __future__ import annotations

from pathlib import Path

from tspsim.base import catalog, dialect
from tspsim.base.errors import InputError

from .architecture import Architecture


def load_model(name_or_path: str | Path) -> Architecture:
    """Load the architecture of a catalog name, a YAML file, a ``config.json`` or a folder with one.

    Raises
    ------
    UnknownNameError
        No catalog entry has this name; the message offers the nearest.
    InputError
        The file is wrong, or describes a model that is no decoder.

    Examples
    --------
    >>> model = load_model("llama-3.1-8b")
    >>> model.kv_heads, model.parameters
    (8, 8030261248)
    """
    path = catalog.locate("models", name_or_path)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    data = dialect.read_yaml(path)

    from .spec import ModelSpec

    try:
        if "layers" not in data:  # a catalog entry has them
            from .huggingface import is_huggingface, read_huggingface

            if is_huggingface(data):
                return read_huggingface(data, name=path.parent.resolve().name or path.stem)
        return catalog.validate(data, ModelSpec).architecture()
    except InputError as error:
        raise error.at(file=str(path)) from None
