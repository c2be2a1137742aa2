#!/usr/bin/env bash
# A hostile guest, root in a real microVM, tries every way out that we know; a positive control shows that each attempt
# would be seen. The last line is one JSON object: successes must be 0. Needs root and what make build makes.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "redteam: needs root: it makes namespaces and a microVM — run: sudo make redteam" >&2
  exit 1
fi
assets=$(test/assets.sh)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
SPACE_TEST_BIN=$PWD/bin SPACE_TEST_ASSETS=$assets SPACE_TEST_GUEST=$assets/guest \
  go test -tags realvm -count=1 -timeout 20m -v -run '^TestNothingLeaves$' ./test/redteam >"$log" 2>&1 || code=$?
verdict=$(grep -E '^\{"techniques":' "$log" | tail -n 1 || true)
grep -vE '^\{"techniques":' "$log" || true
if [ -z "$verdict" ]; then
  echo "redteam: it did not come to a verdict" >&2
  exit 1
fi
echo "$verdict"
exit "$code"
