#!/bin/bash
#SBATCH --job-name=gateway
# The gateway in front of what model-server.sh has entered into the pool:
#   POOL=/shared/pool sbatch gateway.sh --port 8080
set -u
mkdir -p "${POOL:?a folder that all nodes share}"
file=$POOL/endpoints.yaml

join() {
  local entries
  entries=$(cat "$POOL"/*.entry 2>/dev/null)
  if [ -n "$entries" ]; then printf 'endpoints:\n%s\n' "$entries"; else echo 'endpoints: []'; fi >"$file.new"
  if cmp --silent "$file.new" "$file"; then rm "$file.new"; else mv "$file.new" "$file"; fi # endpick never reads half a file
}

join
while sleep 1; do join; done &
joining=$!
trap 'kill $joining' EXIT
endpick up --endpoints "$file" "$@" &
gateway=$!
trap 'kill -TERM $gateway' TERM INT
wait $gateway || wait $gateway
