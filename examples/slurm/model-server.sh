#!/bin/bash
#SBATCH --job-name=model-server --gres=gpu:1 --array=0-3 --signal=B:TERM@30
# One model server per task; it is in the pool from its first healthy answer until it ends:
#   POOL=/shared/pool sbatch model-server.sh vllm serve MODEL --host 0.0.0.0 --port 8000
set -u
mkdir -p "${POOL:?a folder that all nodes share}"
address=$(hostname -i | cut -d' ' -f1)
port=${*: -1}
entry=$POOL/$(hostname)-$port.entry

"$@" &
server=$!
leave() {
  rm -f "$entry" # the gateway sends nothing new from about a second later
  sleep "${DRAIN_SECONDS:-5}"
  kill -TERM $server 2>/dev/null
}
trap leave TERM INT
trap 'rm -f "$entry"' EXIT

until curl --silent --fail --output /dev/null "http://$address:$port/health"; do
  kill -0 $server || exit 1
  sleep 1
done
printf -- '- {name: "%s-%s", address: "%s", port: "%s"}\n' "$(hostname)" "$port" "$address" "$port" >"$entry.new"
mv "$entry.new" "$entry"
wait $server || wait $server # again after a signal
