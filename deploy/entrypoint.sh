#!/bin/sh
# What a container runs: an executor, if Spark's driver asks for one with these variables; else the command given.
set -eu
case "${1:-}" in
executor)
    shift
    exec "${JAVA_HOME:-/usr}/bin/java" \
        --add-opens=java.base/java.lang=ALL-UNNAMED \
        --add-opens=java.base/java.nio=ALL-UNNAMED \
        --add-opens=java.base/java.util=ALL-UNNAMED \
        --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
        -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
        -cp "$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
"")
    echo "give a command, like: millstream run app.py --checkpoint s3://bucket/checkpoint" >&2
    exit 2
    ;;
*)
    exec "$@"
    ;;
esac
