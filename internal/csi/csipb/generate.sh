#!/bin/sh
# Makes the messages again, after a change of csi.proto. It needs protoc (Debian: protobuf-compiler). Its version is in the file's head;
# others write the same messages.
set -eu
cd "$(dirname "$0")"
go build -o ../../../.bin/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
protoc --plugin=../../../.bin/protoc-gen-go -I . --go_out=. --go_opt=paths=source_relative csi.proto
