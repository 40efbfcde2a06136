#!/usr/bin/env bash
# Generates Python (messages, stubs, types) beside the contract, and the descriptor set that Envoy's transcoder reads
# (with the types of error details: without them it cannot write google.rpc.Status as JSON).
# In: proto/**/*.proto, third_party/. Out: proto/whippletree/v1/*_pb2*.py[i], deploy/envoy/whippletree.pb.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
files=(proto/whippletree/v1/*.proto)
rm -f proto/whippletree/v1/*_pb2*.py proto/whippletree/v1/*_pb2*.pyi
"$bin/python" -m grpc_tools.protoc -Iproto -Ithird_party \
  --plugin="protoc-gen-mypy=$bin/protoc-gen-mypy" --plugin="protoc-gen-mypy_grpc=$bin/protoc-gen-mypy_grpc" \
  --python_out=proto --grpc_python_out=proto --mypy_out=quiet:proto --mypy_grpc_out=quiet:proto \
  "${files[@]}"
"$bin/python" -m grpc_tools.protoc -Iproto -Ithird_party --include_imports \
  --descriptor_set_out=deploy/envoy/whippletree.pb "${files[@]}" google/rpc/error_details.proto
