#!/bin/sh
# What a container runs: an executor, if Spark's driver asks for one with these variables; else the command given.
set -eu
case "${1:-}" in
executor)
    set --
    number=0 # Spark's options for its JVM, one a variable: modules to open, ports, what a user has set
    while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
        set -- "$@" "$option"
        number=$((number + 1))
    done
    exec "${JAVA_HOME:-/usr}/bin/java" "$@" \
        -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
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
