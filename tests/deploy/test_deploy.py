"""What can be checked of `deploy/` without a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return {
        one["kind"]: one
        for one in yaml.safe_load_all((DEPLOY / "kubernetes/flow.yaml").read_text())
    }


def test_the_parts_of_the_manifests_name_each_other(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]
    assert manifests["Deployment"]["spec"]["replicas"] == 1
    assert pod["spec"]["serviceAccountName"] == manifests["ServiceAccount"]["metadata"]["name"]
    assert manifests["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert (
        pod["spec"]["volumes"][0]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    )
    lines = manifests["ConfigMap"]["data"]["spark-defaults.conf"].splitlines()
    spark = dict(line.split(None, 1) for line in lines)
    ports = {port["port"] for port in manifests["Service"]["spec"]["ports"]}
    assert {int(spark["spark.driver.port"]), int(spark["spark.driver.blockManager.port"])} <= ports
    assert spark["spark.driver.host"] == manifests["Service"]["metadata"]["name"]
    container = pod["spec"]["containers"][0]
    assert spark["spark.kubernetes.container.image"] == container["image"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    script = next(arg for arg in container["args"] if arg.endswith(".py"))
    assert (ROOT / script.removeprefix("/app/")).is_file()


def test_the_entry_point_runs_what_it_is_given() -> None:
    script = str(DEPLOY / "entrypoint.sh")
    assert subprocess.run(["sh", script, "echo", "ran"], capture_output=True).stdout == b"ran\n"
    nothing = subprocess.run(["sh", script], capture_output=True)
    assert nothing.returncode == 2 and b"give a command" in nothing.stderr


def test_an_executor_is_started_with_all_that_spark_asks_for(tmp_path: Path) -> None:
    """Its JVM gets the options that Spark numbers, in their order and with their blanks."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    java.chmod(0o755)
    numbered = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number} of 12" for number in range(12)}
    env = {name: name.lower() for name in _asked_for() if name != "SPARK_JAVA_OPT_"}
    env |= {**numbered, "JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    started = subprocess.run(
        ["sh", str(DEPLOY / "entrypoint.sh"), "executor"], env=env, capture_output=True, text=True
    )
    told = started.stdout.splitlines()
    assert told[:12] == list(numbered.values()), started
    assert "-Xmxspark_executor_memory" in told
    assert told[told.index("-cp") + 1] == "spark_classpath:spark_home/jars/*"
    assert told[told.index("--driver-url") + 1] == "spark_driver_url"


def _asked_for() -> set[str]:
    return set(re.findall(r"SPARK_[A-Z_]+", (DEPLOY / "entrypoint.sh").read_text()))


def test_spark_has_what_executors_on_kubernetes_are_started_with() -> None:
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as found:
        started = "org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend"
        known = found.read("org/apache/spark/deploy/k8s/Constants$.class")
        taken = found.read(f"{started}$.class")
    script = (DEPLOY / "entrypoint.sh").read_text()
    assert started.replace("/", ".") in script
    assert not [name for name in _asked_for() - {"SPARK_HOME"} if name.encode() not in known]
    options = re.findall(r"^\s+(--[a-zA-Z-]+)", script, re.MULTILINE)
    assert options and not [one for one in options if one.encode() not in taken]
