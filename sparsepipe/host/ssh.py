"""The system's `ssh`: keys, aliases and jump hosts are those of the user's own ssh_config; no password is asked for."""

import shlex
from collections.abc import Sequence

_ALIVE_SECONDS, _ALIVE_COUNT = 5, 3  # after 15 s without an answer the connection is given up
_OPTIONS = (
    "BatchMode=yes",  # never asks: who has no key there is told so
    f"ServerAliveInterval={_ALIVE_SECONDS}",
    f"ServerAliveCountMax={_ALIVE_COUNT}",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
)
_CAUSES = {  # what ssh says → what it means, and what to do
    "Permission denied": "it accepts no key of yours; add one to its authorized_keys (ssh-copy-id {0})",
    "Host key verification failed": "its key is not the one that known_hosts has, or is not known; check it by hand: "
    "ssh {0}",
    "Could not resolve hostname": "there is no host of that name; correct the cluster file, or name it in ssh_config",
    "Connection refused": "no sshd listens there; start it, or name its port in ssh_config",
    "not responding": "it answers no more; is it up, and reachable from here?",
    "timed out": "it does not answer; is it up, and reachable from here?",
    "No route to host": "it cannot be reached; is it up, and on a network of this machine?",
    "Network is unreachable": "no network of this machine leads there",
}
_LONGEST = 300  # characters of what ssh says that are passed on


def ssh_command(destination: str, words: Sequence[str], *, connect_seconds: float = 10.0) -> list[str]:
    """Return the command that runs `words` on a host, standard input and output being those of the command there.

    Each word arrives as it is: `ssh` hands a line to the user's shell there, in which the words are quoted. A leading
    ~/ is left to that shell: the home folder is the one there.
    """
    options = [
        word for option in (*_OPTIONS, f"ConnectTimeout={max(1, round(connect_seconds))}") for word in ("-o", option)
    ]
    return ["ssh", "-T", *options, "--", destination, " ".join(map(_quoted, words))]


def _quoted(word: str) -> str:
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and word != "~/" else shlex.quote(word)


def ssh_failure(destination: str, said: str) -> str:
    """Return why `ssh` ended with code 255, in a line with the remedy, from what it said on standard error."""
    for text, cause in _CAUSES.items():
        if text in said:
            return f"ssh {destination}: {cause.format(destination)}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1][:_LONGEST] if lines else "the connection ended"
    return f"ssh {destination}: {last}; try it by hand: ssh {destination}"
