"""Reading the question of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base import catalog, dialect
from ..base.errors import InputError
from ..scenario.cluster import ClusterInline
from ..scenario.loading import asks_for_jobs, read, read_text, with_known_parts
from ..scenario.question import origin_of
from .question import FleetQuestion, JobKeys


def load(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> FleetQuestion:
    """Read and check the question of a fleet.

    Parameters
    ----------
    source
        Catalog name, path of a YAML file, or a mapping of the same shape.
    overrides
        ``path=value``, as ``--set`` takes them: ``scheduler=easy``, ``jobs.pretrain.nodes=32``.

    Raises
    ------
    InputError
        One line: file, key path, value, what is allowed, and the nearest valid name.
    """
    return _checked(*read(source, overrides))


def load_text(text: str, file: str | Path) -> FleetQuestion:
    """Read and check the text of a fleet's question as if it stood in ``file``; raises InputError as :func:`load`."""
    return _checked(*read_text(text, file))


def _checked(file: str | None, folder: Path | None, data: dict[str, Any], paths: list[str]) -> FleetQuestion:
    """The question with all its names resolved."""
    try:
        question = catalog.validate(data, FleetQuestion)
        cluster = with_known_parts(question.cluster, folder, "cluster")
        assert isinstance(cluster, ClusterInline)
        jobs = tuple(_with_file(job, folder) for job in question.jobs)
        offers = tuple(
            offer.model_copy(
                update={"cluster": with_known_parts(offer.cluster, folder, f"offers.{offer.name}.cluster")}
            )
            for offer in question.offers
        )
    except InputError as error:
        raise error.at(file=origin_of(error.key or "", paths, file)) from None
    return question.model_copy(update={"cluster": cluster, "jobs": jobs, "offers": offers}).read_from(file, paths)


def is_fleet(source: object) -> bool:
    """Whether a question, name, path or mapping asks for a fleet."""
    if isinstance(source, FleetQuestion):
        return True
    if isinstance(source, Mapping):
        return asks_for_jobs(source)
    if not isinstance(source, str | Path):
        return False
    try:
        return asks_for_jobs(dialect.read_yaml(catalog.locate("scenarios", source)))
    except InputError:
        return False  # the reader reports the error


def _with_file(job: JobKeys, folder: Path | None) -> JobKeys:
    """A log found beside the question's file or the catalog's, as a path from here. Raises InputError where there is
    none."""
    if job.file is None:
        return job
    shipped = [root / catalog.FOLDERS["scenarios"] for root in catalog.roots()]
    for path in (Path(), *([folder] if folder is not None else []), *shipped):
        path = path / job.file
        if path.is_file():
            return job.model_copy(update={"file": str(path)})
    raise InputError(f"{job.file} is no file, neither here nor beside the scenario", key=f"jobs.{job.name}.file")
