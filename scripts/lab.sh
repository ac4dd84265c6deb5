#!/usr/bin/env bash
# Set up, then open JupyterLab on the checkout, at notebooks/00_start: on this machine only, behind a token. Prints the
# address to open.
#
#   scripts/lab.sh [PORT] [JUPYTERLAB OPTION...]     PORT: chosen by the system unless given
#
# JUPYTER_TOKEN sets the token, else one is made. From afar: ssh -L PORT:127.0.0.1:PORT HOST.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

port=0
case "${1:-}" in
  "" | -*) ;;
  *[!0-9]*) echo "lab.sh: $1 is not a port; expected a number from 1 to 65535, or none" >&2; exit 2 ;;
  *) port=$1; shift ;;
esac
scripts/setup.sh

port=$(.venv/bin/python - "$port" <<'PY'
import socket, sys
try:
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
        print(server.getsockname()[1])
except (OSError, OverflowError) as error:
    sys.exit(f"lab.sh: port {sys.argv[1]} of 127.0.0.1 cannot be had ({error}); give another, or none")
PY
) || exit 2
# By environment, not by argument: a process list shows arguments to everyone on the machine.
JUPYTER_TOKEN=${JUPYTER_TOKEN:-$(.venv/bin/python -c 'import secrets; print(secrets.token_urlsafe(24))')}
export JUPYTER_TOKEN
# The kernel and the settings of .venv come before those of the user's home. Live figures follow the theme.
export JUPYTER_PREFER_ENV_PATH=1 JUPYTER_CONFIG_PATH="$PWD/.venv/etc/jupyter:$PWD/scripts/jupyterlab${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}"
# A cell's `!sparsepipe` is that of .venv.
export PATH="$PWD/.venv/bin:$PATH"
# Its hook after a save (saved_notebook.py) is that of this checkout, whatever else is installed.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# It asks nobody for news.
mkdir -p .venv/etc/jupyter/labconfig
echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' >.venv/etc/jupyter/labconfig/page_config.json

root=()
[ "$(id -u)" != 0 ] || root=(--allow-root)
echo "JupyterLab: http://127.0.0.1:$port/lab/tree/notebooks/00_start.ipynb?token=$JUPYTER_TOKEN  (Ctrl-C twice ends it)"
exec .venv/bin/jupyter-lab --no-browser --ServerApp.ip=127.0.0.1 --ServerApp.port="$port" --ServerApp.port_retries=0 \
  --ServerApp.root_dir="$PWD" --LabApp.extension_manager=readonly \
  --FileContentsManager.post_save_hook=sparsepipe.study.saved_notebook.after_save \
  ${root[@]+"${root[@]}"} "$@"
