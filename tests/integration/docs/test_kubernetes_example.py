"""The manifests in examples/kubernetes: what their first lines render, and what the API's schemas take."""

import shlex
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from elastic_core.cli.main import main

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"


@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_a_manifest_is_what_its_first_line_renders(name, capsys):
    first, _, manifest = (FOLDER / name).read_text().partition("\n")
    program, *words = shlex.split(first.removeprefix("# "))
    assert program == "elastic"
    assert main(words) == 0
    assert capsys.readouterr().out == manifest


def test_the_server_to_meet_in_is_one_that_the_api_takes():
    documents = list(yaml.safe_load_all((FOLDER / "redis.yaml").read_text()))
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
    jobset = (FOLDER / "jobset.yaml").read_text()
    assert f"value: {documents[0]['metadata']['name']}:{documents[0]['spec']['ports'][0]['port']}\n" in jobset
