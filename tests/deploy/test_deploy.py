"""What can be checked of `deploy/` without a cluster."""

from __future__ import annotations

import subprocess
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


def test_spark_has_what_executors_on_kubernetes_are_started_with() -> None:
    import zipfile

    jars = Path(pyspark.__file__).parent.glob("jars/spark-kubernetes_*.jar")
    names = [name for jar in jars for name in zipfile.ZipFile(jar).namelist()]
    started = "org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend.class"
    assert (
        started in names
        and started[:-6].replace("/", ".") in (DEPLOY / "entrypoint.sh").read_text()
    )
