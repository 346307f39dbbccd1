"""What `deploy/` holds, and where the API server keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ruamel.yaml import YAML

from integration.kubernetes.real_api_server import RealApiServer, path_of

DEPLOY = Path(__file__).parents[3] / "deploy"
KUSTOMIZE = DEPLOY / "kustomize"
HIGHLY_AVAILABLE = DEPLOY / "kustomize-ha"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Service": "/api/v1/namespaces/default/services",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Role": f"{RBAC}/namespaces/default/roles",
    "RoleBinding": f"{RBAC}/namespaces/default/rolebindings",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "InferencePool": path_of("inferencepools"),
    "InferenceObjective": path_of("inferenceobjectives"),
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "Secret": "/api/v1/namespaces/default/secrets",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
}
CHART_ONLY = {"InferenceObjective", "NetworkPolicy", "Secret", "ClusterRole", "ClusterRoleBinding"}


def documents(text: str) -> list[dict]:
    """The objects of a stream of YAML documents."""
    return [item for item in YAML(typ="safe", pure=True).load_all(text) if item]


def manifests(*kinds: str, folder: Path = KUSTOMIZE) -> list[dict]:
    """The objects of a kustomization as its files have them: all, or those of some kinds; what it takes from another counts, too."""
    (kustomization,) = documents((folder / "kustomization.yaml").read_text())
    found: list[dict] = []
    for name in kustomization["resources"]:
        path = folder / name
        found += manifests(folder=path) if path.is_dir() else documents(path.read_text())
    return [item for item in found if not kinds or item["kind"] in kinds]


async def apply(real: RealApiServer, item: dict, *, dry_run: bool = False) -> dict:
    """Create or change an object in the namespace `default`."""
    for subject in item.get("subjects", ()):
        subject["namespace"] = "default"  # as kustomize does
    return await real.apply(f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}", item, dry_run=dry_run)


async def check_all(real: RealApiServer, items: Iterable[dict]) -> set[str]:
    """Have the server check objects without making them; the kinds that it has accepted."""
    accepted = set()
    for item in items:
        await apply(real, item, dry_run=True)
        accepted.add(item["kind"])
    return accepted
