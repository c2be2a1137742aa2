#!/usr/bin/env bash
# What `make demo` shows: a Python project whose tests fail is fixed inside a microVM, and a picture comes out.
# Uses a data directory of its own and free ports, so a real installation on this host is left alone. When it ends, however it
# ends, only the data directory is left.
set -euo pipefail
cd "$(dirname "$0")/.."

space=bin/space
data=$(realpath -m "${SPACE_DEMO_DIR:-/var/lib/space-demo}")
out=${SPACE_DEMO_OUT:-demo-out}
log=$out/up.log
began=$(date +%s.%N)
up='' last=0
bold='' dim='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'; fi
unset SPACE_API_KEY
export SPACE_DATA_DIR=$data

say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { echo "demo: $*" >&2; exit 1; }
since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'; }

# step COMMAND...: shows the command (or $show), runs it, shows exit code and time. Does not end the demo: some are meant
# to fail.
step() {
  local start shown="${show:-$*}"
  start=$(date +%s.%N)
  last=0
  printf '%s$ %s%s\n' "$dim" "${shown/#$space/space}" "$plain"
  "$@" || last=$?
  printf '%s  exit code %d, %s s%s\n' "$dim" "$last" "$(since "$start")" "$plain"
}

# tests: runs the project's tests in the sandbox. Shown is a line for each, and the verdict; the rest is in a file.
tests() {
  "${unittest[@]}" 2>&1 |
    tee "$out/$1" | grep --line-buffered -E ' \.\.\. |^(Ran|OK|FAILED)|^space:'
  return "${PIPESTATUS[0]}"
}

# finish takes down whatever stage the demo got to; pools and kernel objects included.
finish() {
  local code=$?
  trap '' INT TERM HUP
  trap - EXIT
  if [ "$code" != 0 ]; then echo "demo: cleaning up …" >&2; fi
  if ! "$space" down --all >"$out/down.log" 2>&1; then
    if [ -e "$data/installation.json" ] || [ -e "$data/setup.json" ]; then cat "$out/down.log" >&2; fi
    [ "$code" != 0 ] || code=1
  fi
  if [ -n "$up" ]; then wait "$up" 2>/dev/null || true; fi
  if [ "$code" = 0 ]; then
    say "Done in $(since "$began") s. The picture is $out/totals.png. Next: docs/quickstart.md"
    echo "Nothing runs any more. $data stays, so that the next demo is quick; to remove it: rm -rf $data"
  elif [ "$code" -gt 128 ]; then
    echo "demo: stopped; nothing runs any more. make demo goes on with what is in $data; to remove it: rm -rf $data" >&2
  elif [ -s "$log" ]; then
    echo "demo: failed; the end of $log:" >&2
    tail -n 8 "$log" >&2
  fi
  rmdir "$data" 2>/dev/null || true # when not even setup got to anything
  exit "$code"
}

[ -x "$space" ] || fail "$space is missing — run: make build"
[ "$(id -u)" = 0 ] || fail "needs root: it makes microVMs, network namespaces and a pool — run: sudo examples/demo.sh"
mkdir -p "$data" "$out"
# One demo for each data directory; and what others run from it is not ours to take down.
exec 9<"$data"
flock -n 9 || fail "another demo is running on $data — wait until it has ended, or give this one a directory of its own: SPACE_DEMO_DIR"
if [ -e "$data/up.lock" ] && ! flock -n "$data/up.lock" true; then
  fail "a space up is running on $data — stop it with: $space down --all --data-dir $data"
fi
: >"$log"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "1. Set up: packages, pool, guest kernel, templates mini and base (the first time takes minutes)"
"$space" setup --pool-size 16384 --pool-sparse >/dev/null

say "2. Start SPACE"
# A session of its own: Ctrl-C ends the demo, which then deletes the sandbox through the API.
setsid "$space" up --listen 127.0.0.1:0 --data-listen 127.0.0.1:0 >"$log" 2>&1 9>&- &
up=$!
until grep -q 'msg=ready' "$log"; do
  kill -0 "$up" 2>/dev/null || fail "space up has ended"
  sleep 0.1
done
SPACE_URL=http://$(sed -n 's/.*msg=ready .* listen=\([^ ]*\).*/\1/p' "$log")
export SPACE_URL
"$space" node info | grep -E '^(kernel|pool|driver)'

say "3. A sandbox: a microVM with its own kernel, made from the template base"
name=demo
step "$space" create --template base --name "$name" --memory 1024
[ "$last" = 0 ] || exit 1
step "$space" exec "$name" -- uname -sr

say "4. A Python project goes in, with tests and a CSV file; its tests run, and some fail"
step "$space" exec "$name" -- mkdir -p sales/data sales/tests
for f in report.py chart.py fix.diff data/sales.csv tests/__init__.py tests/test_report.py; do
  "$space" cp "examples/sales/$f" "$name:sales/$f"
done
unittest=("$space" exec --cwd /home/user/sales "$name" -- python3 -m unittest -v)
show="${unittest[*]}" step tests tests-before.log
[ "$last" = 1 ] || fail "the tests should have failed with exit code 1"

say "5. A second command in the same sandbox mends the file; the tests pass"
step "$space" exec --cwd /home/user/sales "$name" -- git apply --verbose fix.diff
show="${unittest[*]}" step tests tests-after.log
[ "$last" = 0 ] || fail "the tests should pass now"

say "6. A third draws a picture, which comes out as a file"
step "$space" exec --cwd /home/user/sales "$name" -- python3 chart.py totals.png
step "$space" cp "$name:sales/totals.png" "$out/totals.png"
[ "$last" = 0 ] || exit 1

say "7. Nothing leaves the sandbox (no policy, so no way out)"
step "$space" exec "$name" -- curl -sS --max-time 5 http://192.0.2.1/
[ "$last" != 0 ] || fail "a request left the sandbox"

say "8. The sandbox is deleted"
step "$space" rm "$name" --wait
[ "$last" = 0 ] || exit 1
