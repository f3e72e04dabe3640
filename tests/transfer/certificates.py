"""Certificates for tests, made by the openssl of this machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rose.transfer.wire.security import TlsFiles

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the program openssl"
)
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_authority(folder: Path, name: str = "authority") -> Path:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"]
    openssl("req", "-x509", *_KEY, "-days", "2", *subject, "-keyout", key, "-out", certificate)
    return certificate


def make_certificate(
    authority: Path, name: str, *, days: int = 1, reach: str = "IP:127.0.0.1,DNS:localhost"
) -> TlsFiles:
    """Return the files of a peer; with days below 0, of one whose certificate has expired."""
    folder = authority.parent
    key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={reach}\nbasicConstraints=CA:FALSE\n")
    openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    dates = ["-days", str(days)]
    if days < 0:
        dates = ["-not_before", "20200101000000Z", "-not_after", "20210101000000Z"]
        if "not_after" not in _help("x509"):
            dates = ["-days", str(days)]
    openssl(
        *[
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            authority,
            "-CAkey",
            authority.with_suffix(".key"),
        ],
        *["-CAcreateserial", "-extfile", extensions, "-out", certificate, *dates],
    )
    return TlsFiles(certificate, key, authority)


def _help(command: str) -> str:
    done = subprocess.run(["openssl", command, "-help"], capture_output=True, text=True)
    return done.stdout + done.stderr
