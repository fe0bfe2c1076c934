"""The code of pages that import torch, and of those that need what `make ecosystem` installs."""

import pytest

from page_kit import has, name_of, pages, play

NEED_TORCH = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.ecosystem] if has("ecosystem", page) else [])
    for page in pages()
    if has("torch", page) or has("ecosystem", page)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", NEED_TORCH)
def test_code_of_a_page_does_what_the_page_shows(page, tmp_path, request):
    # Other libraries start interpreters of their own, and import more than torch.
    own = has("ecosystem", page) or has("own interpreters", page)
    python = None if own else request.getfixturevalue("torch_python")
    play(page, tmp_path, python)
