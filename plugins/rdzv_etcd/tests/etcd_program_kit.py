"""Programs that pretend to be etcd."""


def pretend(folder, script):
    """Write a program that is none, and have it used."""
    path = folder / "etcd-of-the-test"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "etcd Version: 3.5.9" && exit\n{script}\n')
    path.chmod(0o755)
    return str(path)
