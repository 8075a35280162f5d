"""docs/kubernetes.md: what its manifests give a broker is what a broker takes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from gateway.cli import serve
from gateway.config import load_config

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]))


def pod() -> dict[str, Any]:
    (found,) = (one for one in manifests() if one["kind"] == "StatefulSet")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def service_links() -> dict[str, str]:
    """The variables by which Kubernetes tells a pod of the services beside it, unless it is not to."""
    found: dict[str, str] = {}
    for service in manifests():
        if service["kind"] != "Service" or service["spec"].get("clusterIP") == "None":
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        found |= {f"{name}_SERVICE_HOST": "10.96.0.7", f"{name}_PORT": "tcp://10.96.0.7:5672"}
        for port in service["spec"]["ports"]:
            found[f"{name}_SERVICE_PORT_{port['name'].upper()}"] = str(port["port"])
            found[f"{name}_PORT_{port['port']}_TCP"] = f"tcp://10.96.0.7:{port['port']}"
    return found


def test_a_pod_has_no_variables_that_are_taken_for_settings() -> None:
    (container,) = pod()["containers"]
    (secret,) = (one for one in manifests() if one["kind"] == "Secret")
    own = {one["name"]: secret["stringData"][one["valueFrom"]["secretKeyRef"]["key"]] for one in container["env"]}
    environment = own | (service_links() if pod().get("enableServiceLinks", True) else {})
    assert load_config(environment=environment).peer.secret == "change me"


def test_its_command_is_one_of_a_member() -> None:
    (container,) = pod()["containers"]
    shell, (script,) = container["command"], container["args"]
    shown = script.replace("exec millrace serve", r"printf '%s\n'")
    done = subprocess.run([*shell, shown], env={"HOSTNAME": "millrace-2"}, capture_output=True, text=True, check=True)
    given = serve.make_context("serve", done.stdout.splitlines()).params
    assert (given["broker_id"], given["advertise"], given["data_dir"]) == (2, "millrace-2.millrace-brokers", "/data")
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {int(given[door].rpartition(":")[2]) for door in ("amqp", "mqtt", "native", "peer")}
