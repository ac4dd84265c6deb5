"""TLS between the hosts of a job: a certificate that is made for it, which both ends show, and no other is taken.

The certificate with its key is in the run's folder on each host, for its owner alone to read, and came there as the
secret did: through the launcher's own connection. It signs itself, so what it says of dates and names says nothing.
"""

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import complaint
from ...util.io.files import write_atomic

CERTIFICATE = Path("control") / "certificate.pem"  # in a run's folder
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the clock of a host may be an hour off
_COMMAND = (  # OpenSSL's req(1): a key on the curve P-256 and a certificate that it signs itself, both in PEM
    *("openssl", "req", "-x509", "-batch", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-subj", "/CN=sparsepipe job", "-days", "36500", "-keyout", "-", "-out", "-"),
)
_SECONDS = 60.0


@dataclass(frozen=True)
class Encryption:
    """The certificate and its key, in a file."""

    path: Path

    @classmethod
    def of_run(cls, run_dir: Path) -> "Encryption":
        """Return that of a run's folder. Raises InputError if it does not exist or is damaged."""
        found = cls(run_dir / CERTIFICATE)
        found.context(server_side=False)
        return found

    @classmethod
    def write(cls, run_dir: Path, certificate: str) -> "Encryption":
        """Write a certificate with its key, in PEM, for the workers of this host."""
        write_atomic(run_dir / CERTIFICATE, certificate, make_folder=True, private=True)
        return cls.of_run(run_dir)

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        """Return what one end of connections goes by. Raises InputError if the file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # it is the job's, not a host's
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
        if server_side:
            context.num_tickets = 0  # the caller reads nothing: with some unread, its end would cut off what it sent
        try:
            context.load_cert_chain(self.path)
            context.load_verify_locations(self.path)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                "encryption.no_certificate",
                f"{self.path}: cannot be used as a certificate ({error}); launch the run again",
            ) from None
        return context


def tls_of(encryption: Encryption | None, *, server_side: bool) -> ssl.SSLContext | None:
    """Return what one end of connections goes by; None if they are not encrypted."""
    return encryption.context(server_side=server_side) if encryption else None


def check_openssl() -> None:
    """Raise InputError if this machine cannot make a certificate."""
    if shutil.which(_COMMAND[0]) is None:
        raise InputError(
            "encryption.no_openssl", "encrypt needs the program openssl, which was not found on PATH; install OpenSSL"
        )


def new_certificate() -> str:
    """Return a new key and its certificate. Raises InputError if `openssl` makes none."""
    check_openssl()
    try:
        done = subprocess.run(
            _COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "encryption.timeout", f"openssl did not create a certificate within {_SECONDS:.0f} s"
        ) from None
    if done.returncode:
        raise InputError(
            "encryption.no_certificate", f"openssl could not create a certificate: {complaint(done.stderr)}"
        )
    return done.stdout
