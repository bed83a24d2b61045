#!/bin/sh
# Set-up for development and for the demo: one virtual environment at the root, made by the distribution's Python
# (so that it sees distribution packages), with the exact versions of constraints.txt.
# Exit 2: something is missing that only the reader can supply; the text says what.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
refuse() { printf 'setup: %s\n' "$*" >&2; exit 2; }

python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3 || true)

missing=""
add() { missing="$missing $1"; }
[ -n "$python" ] || add python3
[ -z "$python" ] || "$python" -c 'import venv, ensurepip' 2>/dev/null || add python3-venv
command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || add gcc
{ [ -e /usr/include/stdint.h ] || [ -e /usr/lib/gcc ]; } && [ -e /usr/include/stdlib.h ] || add libc6-dev

if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing distribution packages:$missing"
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    [ -n "$python" ] || python=/usr/bin/python3
  else
    case "$missing" in
      *python3*) refuse "missing:$missing. Install them (as root: apt-get install$missing) and run the command again." ;;
      *) say "without$missing the body scanner cannot be built: requests will be routed by headers only" ;;
    esac
  fi
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  refuse "Python 3.11 or newer is needed, found $("$python" --version 2>&1) at $python."

if [ ! -x .venv/bin/python ]; then
  say "making .venv with $python"
  "$python" -m venv --system-site-packages .venv ||
    refuse "the virtual environment could not be made; install python3-venv and run the command again."
fi

say "installing pointsman and its tools into .venv (about a minute the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[dev]' ||
  { printf 'setup: pip failed, see its message above; nothing else was changed\n' >&2; exit 1; }
if [ -e sidecar/libpmscan.so ]; then
  say "done"
else
  say "done, without the body scanner (no C compiler): header mode"
fi
