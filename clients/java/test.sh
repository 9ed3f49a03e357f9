#!/bin/sh
# Tests the client for the JVM with ShedLock and Spring, runs the contract suite with it, also over TCP, and the examples: `make test-java`. On the JDK in the path,
# and the tests of virtual threads on the newest other one that has them.
set -eu
cd "$(dirname "$0")"
mvn -B -ntp verify -Pexamples dependency:build-classpath -Dmdep.outputFile=target/classpath
CONTRACT_OVER=tcp CONTRACT_STORES=memory mvn -q -B -ntp -pl client verify -Dtest=ContractTest
../../examples/run.py --jvm
newest=$(for java in "$(command -v java)" /usr/lib/jvm/*/bin/java; do
  [ ! -x "$java" ] || echo "$("$java" -XshowSettings:properties -version 2>&1 | sed -n 's/.*java.specification.version = //p') $java"
done | sort -n | tail -1)
version=${newest%% *}
if [ "${version%%.*}" -ge 21 ]; then
  echo "virtual threads: on JDK $version"
  mvn -q -B -ntp -pl client verify -Djvm="${newest#* }" -Dexcluded.groups= -Dtest=VirtualThreadsTest,InterruptTest,OutageTest
else
  echo "virtual threads: not run: they need JDK 21 or later, and the newest here is $version"
fi
