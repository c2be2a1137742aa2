#!/usr/bin/env bash
# What `make demo` shows: a Python project whose tests fail is fixed inside a microVM, and a picture comes out.
# Uses a data directory and ports of its own, so a real installation on this host is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

space=bin/space
data=${SPACE_DEMO_DIR:-/var/lib/space-demo}
listen=${SPACE_DEMO_LISTEN:-127.0.0.1:17070}
data_listen=${SPACE_DEMO_DATA_LISTEN:-127.0.0.1:17071}
out=${SPACE_DEMO_OUT:-demo-out}
export SPACE_DATA_DIR=$data SPACE_URL=http://$listen
log=$out/up.log
began=$(date +%s.%N)

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# step COMMAND...: shows the command, runs it, shows exit code and time. Never stops the demo: some steps are meant to fail.
step() {
  local start code=0
  start=$(date +%s.%N)
  printf '\033[2m$ %s\033[0m\n' "$*"
  "$@" || code=$?
  awk -v a="$start" -v b="$(date +%s.%N)" -v c="$code" 'BEGIN{printf "   exit code %d, %.1f s\n", c, b - a}'
  last=$code
}

if [ "$(id -u)" != 0 ]; then
  echo "space demo: needs root: it makes microVMs, network namespaces and a pool — run: sudo make demo" >&2
  exit 1
fi
mkdir -p "$out"

say "1. Set up (packages, pool, guest kernel, templates mini and base; the first time takes minutes)"
"$space" setup --data-dir "$data" --pool-size 16384

say "2. Start SPACE"
"$space" up --data-dir "$data" --listen "$listen" --data-listen "$data_listen" >"$log" 2>&1 &
up=$!
sandbox=
finish() {
  local code=$?
  if [ -n "$sandbox" ]; then "$space" rm "$sandbox" --wait >/dev/null 2>&1 || true; fi
  kill -TERM "$up" 2>/dev/null || true
  wait "$up" 2>/dev/null || true
  if [ "$code" != 0 ]; then
    echo "demo: failed; the end of $log:" >&2
    tail -n 20 "$log" >&2
  fi
}
trap finish EXIT
trap 'exit 130' INT TERM
until curl -fsS -o /dev/null "http://$listen/readyz" 2>/dev/null; do
  kill -0 "$up" 2>/dev/null || exit 1
  sleep 0.1
done
"$space" node info

say "3. A sandbox: a microVM with its own kernel, made from the template base"
name=demo-$(date +%s)
step "$space" create --template base --name "$name" --memory 1024
sandbox=$name
step "$space" exec "$name" -- uname -sr

say "4. A Python project with tests and a CSV file goes in; its tests run, and some fail"
step "$space" exec "$name" -- mkdir -p sales/data sales/tests
for f in report.py chart.py fix.diff data/sales.csv tests/__init__.py tests/test_report.py; do
  "$space" cp "examples/sales/$f" "$name:sales/$f"
done
step "$space" exec --cwd /home/user/sales "$name" -- python3 -m unittest
[ "$last" = 1 ] || { echo "demo: the tests should have failed with exit code 1" >&2; exit 1; }

say "5. A second command in the same sandbox mends the file; the tests pass"
step "$space" exec --cwd /home/user/sales "$name" -- git apply --verbose fix.diff
step "$space" exec --cwd /home/user/sales "$name" -- python3 -m unittest
[ "$last" = 0 ] || exit 1

say "6. A third draws a picture, which comes out as a file"
step "$space" exec --cwd /home/user/sales "$name" -- python3 chart.py totals.png
"$space" cp "$name:sales/totals.png" "$out/totals.png"
ls -l "$out/totals.png"

say "7. Nothing leaves the sandbox (no policy, so no way out)"
step "$space" exec "$name" -- curl -sS --max-time 5 http://192.0.2.1/
[ "$last" != 0 ] || { echo "demo: a request left the sandbox" >&2; exit 1; }

say "8. The sandbox is deleted; nothing is left of it"
step "$space" rm "$name" --wait
sandbox=
"$space" ls

say "Done in $(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN{printf "%.0f", b - a}') s. The picture is $out/totals.png. Next: docs/quickstart.md"
