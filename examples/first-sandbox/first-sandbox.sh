#!/usr/bin/env bash
# The same as main.go, with nothing but curl: create a sandbox, wait until it is ready, make a command session, attach,
# take the result, keep, pause or delete. What has been done stands in a directory; Ctrl-C and a second run go on where the
# first one stopped, and nothing is done twice.
#
#   SPACE_API_KEY=… examples/first-sandbox/first-sandbox.sh [DIR]
#
# Environment: SPACE_URL, SPACE_API_KEY, TEMPLATE (default base), CLEANUP (keep, pause or delete; default: ask).
set -euo pipefail

api=${SPACE_URL:-http://127.0.0.1:7070}
key=${SPACE_API_KEY:?set SPACE_API_KEY, for example to the content of /var/lib/space/admin.key}
dir=${1:-first-sandbox-run}
script='echo "hello from $(uname -sr)"; for i in 1 2 3 4 5; do echo "step $i of 5"; sleep 1; done'

trap 'echo; echo "interrupted; run it again to go on (remembered in $dir)" >&2; exit 130' INT

# Each thing that is remembered is one small file, written as a whole.
recall() { if [ -e "$dir/$1" ]; then cat "$dir/$1"; fi; }
remember() { printf '%s\n' "$2" >"$dir/.new" && mv "$dir/.new" "$dir/$1"; }

# call METHOD PATH [BODY] [NAME]: one request; NAME makes the idempotency key, so that it can be sent again. An error is
# shown as the server explains it.
call() {
  local answer status
  answer=$(curl -sS --retry 5 --retry-connrefused -X "$1" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    ${4:+-H "Idempotency-Key: $4-$run"} ${3:+--data-binary "$3"} -w '\n%{http_code}' "$api$2")
  status=${answer##*$'\n'}
  answer=${answer%$'\n'*}
  if [ "${status:0:1}" != 2 ]; then
    echo "$1 $2: HTTP $status: $answer" >&2
    return 1
  fi
  printf '%s\n' "$answer"
}

# first PATTERN: the first match in what comes in, without its quotes. Ids and tokens need no JSON parser.
first() { grep -oE -m 1 "$1" | head -n 1 | sed 's/.*"\([^"]*\)"$/\1/'; }

mkdir -p "$dir"
run=$(recall run)
if [ -z "$run" ]; then
  run=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
  remember run "$run"
else
  echo "Going on with run $run" >&2
fi

# 1. Create: accepted is not ready.
sandbox=$(recall sandbox)
if [ -z "$sandbox" ]; then
  made=$(call POST /v1/sandboxes "{\"template\":\"${TEMPLATE:-base}\",\"name\":\"first-$run\",\"metadata\":{\"run\":\"$run\"}}" create)
  remember operation "$(first '"op_[a-z0-9]{20}"' <<<"$made")"
  sandbox=first-$run
  remember sandbox "$sandbox"
fi

# 2. Wait for the operation. A wait that runs out is no error: ask again.
until [ -n "$(recall ready)" ]; do
  case $(call GET "/v1/operations/$(recall operation)?wait=30s" | grep -oE '"state":"(queued|running|succeeded|failed|canceled)"' | head -n 1) in
  *succeeded*) remember ready yes && echo "The sandbox $sandbox is ready" >&2 ;;
  *failed* | *canceled*) call GET "/v1/operations/$(recall operation)" >&2; exit 1 ;;
  esac
done

# What the last run has paused goes on. One that runs already is left so.
if [ -n "$(recall paused)" ]; then
  call POST "/v1/sandboxes/$sandbox/resume?wait=60s" >/dev/null
  rm "$dir/paused"
  echo "The sandbox goes on where it was paused" >&2
fi

# 3. A command session. Its process runs from the first attach.
command=$(recall command)
if [ -z "$command" ]; then
  quoted=${script//\\/\\\\}
  made=$(call POST "/v1/sandboxes/$sandbox/commands" "{\"argv\":[\"sh\",\"-c\",\"${quoted//\"/\\\"}\"]}" command)
  command=$(first '"cmd_[a-z0-9]{20}"' <<<"$made")
  remember command "$command"
fi

# 4. Attach: the output from where the file ends. The body ends when the session has ended and all is sent.
until [ -n "$(recall complete)" ]; do
  access=$(call POST "/v1/commands/$command/attach")
  token=$(first '"token": *"[^"]*"' <<<"$access")
  data=$(first '"url": *"[^"]*"' <<<"$access" | sed 's/^ws/http/; s#/v1/attach/.*##')
  touch "$dir/stdout"
  if curl -sSN --fail -H "Authorization: Bearer $token" \
    "$data/v1/commands/$command/output?stream=stdout&follow=true&offset=$(stat -c %s "$dir/stdout")" |
    tee -ai "$dir/stdout"; then # -i: Ctrl-C ends curl, and tee when it has written what curl sent
    remember complete yes
  fi
done

# 5. The result. Some output is not success: the exit code is.
result=$(call GET "/v1/commands/$command?wait=30s")
code=$(grep -oE '"exit_code":-?[0-9]+' <<<"$result" | cut -d: -f2)
echo "The command has ended with exit code ${code:-unknown}" >&2

# 6. Keep, pause or delete.
cleanup=${CLEANUP:-}
while [ "$cleanup" != keep ] && [ "$cleanup" != pause ] && [ "$cleanup" != delete ]; do
  read -rp 'Keep the sandbox, pause it or delete it? [keep/pause/delete] ' cleanup || cleanup=keep
done
if [ "$cleanup" = pause ]; then
  call POST "/v1/sandboxes/$sandbox/pause?wait=60s" >/dev/null
  remember paused yes
  echo "The sandbox is paused; the next run goes on with it" >&2
fi
if [ "$cleanup" = delete ] && [ -z "$(recall deleted)" ]; then
  call DELETE "/v1/sandboxes/$sandbox?wait=60s" '' delete >/dev/null
  remember deleted yes
  echo "The sandbox is deleted" >&2
fi
exit "${code:-1}"
