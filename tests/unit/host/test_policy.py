"""`pluginPolicy`."""

from __future__ import annotations

from endpick.diagnostics import Code
from endpick.host.discovery import Candidate
from endpick.host.resolution import Policy, Reference, check_policy

ACME = Candidate("acme.scorer", 1, "acme-x", "2.1", "m:C", "/p")
BUILTIN = Candidate("queue-scorer", 1, "endpick", "0.1.0", "m:C", "/q", is_builtin=True)


def verdict(candidate, policy):
    diagnostic = check_policy(Reference(candidate.type), candidate, policy)
    return None if diagnostic is None else diagnostic.help


def test_allowed_distribution_passes():
    for policy in [Policy(), Policy(("acme_X",)), Policy(("other", "Acme.x"), ("acme.filter", "acme"))]:
        assert verdict(ACME, policy) is None


def test_denied_type_is_refused():
    for pattern in ["acme.scorer", "acme.*", "*"]:
        assert (
            verdict(ACME, Policy(("acme-x",), ("other", pattern)))
            == f"remove '{pattern}' from pluginPolicy.denyTypes, or use another plugin"
        )


def test_endpick_needs_no_permission_but_its_types_can_be_denied():
    assert verdict(BUILTIN, Policy(())) is None
    assert verdict(BUILTIN, Policy(None, ("queue-scorer",))) is not None


def test_other_distributions_are_refused():
    for allowed in [(), ("acme",), ("acme-xy", "cme-x")]:
        diagnostic = check_policy(Reference("acme.scorer"), ACME, Policy(allowed))

        assert diagnostic.code is Code.E0307
        assert diagnostic.message == "the distribution acme-x 2.1 is not allowed by pluginPolicy"
        assert diagnostic.help == "add the line `- acme-x` to pluginPolicy.allowDistributions"


def test_patterns_match_case():
    candidate = Candidate("acme.scorer", 1, "acme", "1.0", "acme:Scorer", "/site/acme-1.0.dist-info")

    assert check_policy(Reference("acme.scorer"), candidate, Policy(None, ("ACME.*",))) is None
