"""The certificate of a job whose hosts encrypt what they send to each other: made anew for each, by `openssl`."""

import shutil
import subprocess

from ...errors import InputError
from ...io.fields import complaint

_COMMAND = (  # OpenSSL's req(1): a key on the curve P-256 and a certificate that it signs itself, both in PEM
    *("openssl", "req", "-x509", "-batch", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-subj", "/CN=sparsepipe job", "-days", "36500", "-keyout", "-", "-out", "-"),
)
_SECONDS = 60.0


def check_openssl() -> None:
    """Raise InputError where this machine cannot make a certificate."""
    if shutil.which(_COMMAND[0]) is None:
        raise InputError(
            "encryption.no_openssl", "encrypt needs the program openssl, which is not on PATH; install OpenSSL"
        )


def new_certificate() -> str:
    """Return a new key and its certificate. Raises InputError where `openssl` makes none."""
    check_openssl()
    try:
        done = subprocess.run(
            _COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError("encryption.timeout", f"openssl made no certificate within {_SECONDS:.0f} s") from None
    if done.returncode:
        raise InputError("encryption.no_certificate", f"openssl made no certificate: {complaint(done.stderr)}")
    return done.stdout
