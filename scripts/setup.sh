#!/usr/bin/env bash
# Set up .venv with all that sparsepipe needs. Done before, it returns at once; interrupted, the next call continues.
#
#   scripts/setup.sh [--force | --no-wait]
#
# --force     check everything again, e.g. after installing what it said was missing
# --no-wait   return when all but MinkowskiEngine is installed; its build continues in the background, at low priority
#
# PYTHON names the interpreter to use. SPARSEPIPE_NO_APT=1 leaves Debian's packages alone.
# Where packages come from is this machine's pip and apt configuration. Progress goes to stderr.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What pip finds on the caller's PYTHONPATH it would take for installed, and .venv would lack it.
unset PYTHONPATH PYTHONHOME

say() { printf 'set-up %4d s  %s\n' "$SECONDS" "$*" >&2; }
fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

force=no
export wait=yes
case "${1:-}" in
  "") ;;
  --force) force=yes ;;
  --no-wait) wait=no ;;
  *) printf 'set-up: unknown argument %s; expected nothing, --force or --no-wait\n' "$1" >&2; exit 2 ;;
esac

# Stamps name what was set up: another pyproject.toml, lock file or set-up is done again. The engine's is there once its
# build has ended, well or not: a build that failed is tried again with --force alone, one that was killed at the next call.
key=$(cat pyproject.toml scripts/setup.sh scripts/lock.txt | sha256sum)
stamp=.venv/.setup-${key:0:16}
export engine_stamp=$stamp-engine
is_installed() { [ "$force" = no ] && [ -e "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; }
is_done() { [ -e "$engine_stamp" ] && is_installed; }

# --- MinkowskiEngine's build ----------------------------------------------------------------------------------------

export engine=MinkowskiEngine==0.5.4
build_lock=.venv/minkowski-build.lock # held by the build and all its compilers; `sparsepipe reproduce` looks at it, too
engine_build=
stop_build() { [ -z "$engine_build" ] || kill -TERM -- "-$engine_build" 2>/dev/null || true; }
trap stop_build EXIT

has() { command -v "$1" >/dev/null; }
engine_works() {
  # It imports names from collections that moved to collections.abc: put there here, as sparsepipe does where it imports it.
  .venv/bin/python -W ignore - 2>/dev/null <<'PY'
import collections, collections.abc
for name in ("Sequence", "Mapping", "Iterable"):
    setattr(collections, name, getattr(collections.abc, name))
import MinkowskiEngine
PY
}
build_engine() {
  # Linux may give each session the same share of the processors, whatever the priorities in it are.
  [ "$wait" = yes ] || echo 19 2>/dev/null >/proc/self/autogroup || true
  # Its set-up calls `pip` and `ninja` by name: those of .venv. No CUDA device is shown to it: its CUDA sources do not
  # compile against today's CUDA, and the native engine is the one for GPUs.
  PATH=$PWD/.venv/bin:$PATH MAX_JOBS=$(nproc) CUDA_VISIBLE_DEVICES='' .venv/bin/python -m pip install \
    --disable-pip-version-check \
    --use-pep517 --no-build-isolation --no-deps --config-settings="--global-option=--blas=openblas" "$engine"
  local code=$?
  [ $code -gt 128 ] || touch "$engine_stamp" # beyond: a signal ended it
}
export -f build_engine
start_build() { # unless another set-up's build is at work; a process group of its own can be ended with its compilers
  local low=()
  if [ "$wait" = no ]; then # the caller's work comes first
    ! has nice || low+=(nice -n 19)
    ! has ionice || low+=(ionice -c 3)
  fi
  exec 8>>"$build_lock"
  if ! has flock || flock -n 8; then
    ${low[@]+"${low[@]}"} setsid bash -c build_engine >.venv/minkowski-build.log 2>&1 </dev/null 9>&- &
    engine_build=$!
  fi
  exec 8>&-
}
is_building() { has flock && [ -e "$build_lock" ] && ! (flock -n 8) 8<"$build_lock"; }
wait_for_build() {
  if [ -n "$engine_build" ]; then
    wait "$engine_build" || true
    engine_build=
  else
    (flock 8) 8<"$build_lock"
  fi
}

join_build() { # if all else is installed, and another call's build is at work
  if is_done; then exit 0; fi
  if is_installed && is_building; then
    [ "$wait" = yes ] || exit 0
    exec 9>&- # other set-ups need not wait for the build
    say "waiting for the build of MinkowskiEngine (log: .venv/minkowski-build.log)"
    wait_for_build
    exec scripts/setup.sh # a build that was ended is repeated
  fi
  if is_done; then exit 0; fi # a build has ended since the first check
}
join_build

# One set-up at a time in a folder; the next one waits, then finds it done.
if has flock; then
  exec 9>>.setup-lock
  flock -n 9 || { say "another set-up is running in this folder; waiting for it"; flock 9; }
  join_build
fi
is_installed || rm -f .venv/.setup-*

# --- Python and room ------------------------------------------------------------------------------------------------

python=
for candidate in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13 python3.14 python; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
[ -n "$python" ] || fail "no Python 3.11 or newer on PATH (found: $(python3 --version 2>&1 || true)); install one, or name it: PYTHON=/path/to/python3 $0"

need_mib=4000 # the virtual environment with a CPU build of torch, and the build of MinkowskiEngine beside it
free_mib=$(df -Pm . | awk 'NR == 2 { print $4 }')
if [ ! -x .venv/bin/python ] && [ "$free_mib" -lt "$need_mib" ]; then
  fail "$free_mib MiB free in $PWD, at least $need_mib MiB needed; make room, then run this script again"
fi

# --- Debian packages ------------------------------------------------------------------------------------------------

can_build_with_openblas() {
  local folder status=0
  folder=$(mktemp -d)
  printf '#include <cblas.h>\nint main() { return 0; }\n' >"$folder/a.cpp"
  c++ "$folder/a.cpp" -lopenblas -o "$folder/a" 2>/dev/null || status=1
  rm -rf "$folder"
  return $status
}
has_headers() { "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }

build_packages() { # what MinkowskiEngine's build and the virtual environment need and this machine lacks
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$python_package-venv"
  has c++ || echo build-essential
  has_headers || echo "$python_package-dev"
  can_build_with_openblas || echo libopenblas-dev
}
view_packages() { # what exporting figures, looking into them and tests of several hosts need and this machine lacks
  has chromium || has chromium-browser || has google-chrome || echo chromium
  has pdftotext || echo poppler-utils
  # For tests of several hosts. Debian's package starts a server that listens: only on a machine that is CI's own.
  [ -z "${CI:-}" ] || PATH=$PATH:/usr/sbin has sshd || echo openssh-server
  [ -n "$(find /usr/share/fonts /usr/local/share/fonts -name 'DejaVuSans*' -print -quit 2>/dev/null)" ] || echo fonts-dejavu-core
}
# 'python3.11': Debian's name for the packages of that interpreter
python_package=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
not_installed="not root, no apt-get, or SPARSEPIPE_NO_APT is set"
may_install() { [ "$(id -u)" = 0 ] && has apt-get && [ -z "${SPARSEPIPE_NO_APT:-}" ]; }
apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a && apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@"
}

apt_log=$PWD/.setup-apt.log
mapfile -t build < <(build_packages)
mapfile -t view < <(view_packages)
view_install=
if [ $((${#build[@]} + ${#view[@]})) -gt 0 ] && may_install; then
  say "Debian packages: ${build[*]} ${view[*]}"
  : >"$apt_log"
  apt-get -q update >>"$apt_log" 2>&1 || say "apt-get update failed (log: $apt_log); continuing with the package lists on disk"
  if [ ${#build[@]} -gt 0 ]; then
    apt_install "${build[@]}" >>"$apt_log" 2>&1 || say "apt-get could not install ${build[*]} (log: $apt_log)"
    mapfile -t build < <(build_packages)
  fi
  if [ ${#view[@]} -gt 0 ]; then # nothing below waits for these
    apt_install "${view[@]}" >>"$apt_log" 2>&1 </dev/null &
    view_install=$!
  fi
elif [ ${#view[@]} -gt 0 ]; then
  say "missing: ${view[*]} ($not_installed); without chromium no figure is exported as PDF, SVG or PNG"
fi
case " ${build[*]} " in
  *-venv\ *) fail "$python cannot make virtual environments; install $python_package-venv, then run this script again" ;;
esac

# --- The virtual environment ----------------------------------------------------------------------------------------

if ! .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  say "virtual environment .venv with $("$python" --version)"
  "$python" -m venv --clear .venv
fi
log=.venv/setup.log
: >"$log"

pip_install() { # pip_install WHAT ARGUMENT...
  local what=$1
  shift
  if ! .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off "$@" >>"$log" 2>&1; then
    fail "pip could not install $what: $(grep -a 'ERROR\|[Ee]rror:' "$log" | tail -n 1) (log: $log); check network and disk, then run this script again: it continues from here"
  fi
}

mapfile -t build_first < <(grep -E '^(numpy|setuptools|wheel|ninja)==' scripts/lock.txt)
torch=$(grep '^torch==' scripts/lock.txt)
say "$torch"
pip_install "$torch" "$torch" "${build_first[@]}"

can_build=no
if engine_works; then
  say "MinkowskiEngine is installed"
  touch "$engine_stamp"
elif [ ${#build[@]} -gt 0 ]; then
  say "MinkowskiEngine cannot be built without ${build[*]} ($not_installed): the native engine computes all networks"
  touch "$engine_stamp"
else
  can_build=yes
  say "$engine: building it in the background (log: .venv/minkowski-build.log)"
  start_build
fi

say "JupyterLab, plotly, the checkers and sparsepipe itself, from this folder"
pip_install "sparsepipe[dev]" -c scripts/lock.txt --no-build-isolation -e '.[dev]'

if [ -n "$view_install" ]; then
  wait "$view_install" || say "apt-get could not install ${view[*]} (log: $apt_log); without chromium no figure is exported as PDF, SVG or PNG"
fi
# By .gitattributes git sees notebooks as they are without outputs; JupyterLab lets it look again after each save (lab.sh).
if command -v git >/dev/null && git rev-parse --git-dir >/dev/null 2>&1; then
  git config filter.notebooks.clean '.venv/bin/python -P -m nbstripout --keep-id --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info"' ||
    say "git is not configured to omit the outputs of notebooks: its configuration cannot be written"
fi

.venv/bin/python -c 'import sparsepipe, torch' 2>>"$log" || fail "sparsepipe does not import: $(tail -n 1 "$log") (log: $log)"
touch "$stamp"
[ $can_build = yes ] || { say "ready"; exit 0; }
exec 9>&-
if [ "$wait" = no ] && is_building; then
  say "ready but for MinkowskiEngine, whose build continues (to end it: kill -- -${engine_build:-GROUP})"
  engine_build= # the trap leaves it at work
  exit 0
fi
say "all but MinkowskiEngine is installed; waiting for its build"
wait_for_build
if ! engine_works && [ ! -e "$engine_stamp" ]; then # another call's build, which was ended, or was of other versions
  start_build
  wait_for_build
fi
if engine_works; then
  touch "$engine_stamp"
  say "MinkowskiEngine is built"
elif [ -e "$engine_stamp" ]; then
  say "MinkowskiEngine could not be built (log: .venv/minkowski-build.log): the native engine computes all networks"
else
  fail "the build of MinkowskiEngine was ended by a signal (log: .venv/minkowski-build.log); run this script again to repeat it"
fi
say "ready"
