#!/bin/sh
# Measures what the client for the JVM costs a call, beside a bare channel (goal: 60 us).
set -eu
cd "$(dirname "$0")"
../../test/deps.sh java
make -C ../.. build
mvn -q -B -ntp -pl client test-compile dependency:build-classpath -Dmdep.outputFile=target/classpath
exec java -cp "client/target/test-classes:client/target/classes:$(cat client/target/classpath)" io.github.locksidecar.internal.Bench
