"""llm-d's command lines, written as Go programs are called."""

from __future__ import annotations

import click
import pytest

from endpick.cli.llm_d_flags import FLAGS, GIVEN, Effect, removed_flags, without_effect
from endpick.cli.serve import command
from endpick.cli.serve_options import ServeOptions, log_format, log_level, pool_of, settings_of
from endpick.host.planning.pool import PoolSettings, PoolSettingsError, target_ports

LLM_DS_41 = [
    "allow-experimental-plugins",
    "cert-path",
    "config-file",
    "config-text",
    "disable-endpoint-subset-filter",
    "drain-timeout",
    "emit-endpoint-scores",
    "enable-cert-reload",
    "enable-grpc-stream-metrics",
    "enable-pprof",
    "endpoint-selector",
    "endpoint-target-ports",
    "fairness-id-metric-label-limit",
    "feature-gates",
    "grpc-health-port",
    "grpc-max-recv-msg-size",
    "grpc-max-send-msg-size",
    "grpc-port",
    "ha-enable-leader-election",
    "health-checking",
    "metrics-cert-dir",
    "metrics-client-ca-file",
    "metrics-endpoint-auth",
    "metrics-port",
    "metrics-staleness-threshold",
    "plugin-state-staleness-threshold",
    "pool-group",
    "pool-name",
    "pool-namespace",
    "refresh-metrics-interval",
    "refresh-prometheus-metrics-interval",
    "secure-serving",
    "tls-cipher-suites",
    "tls-min-version",
    "tracing",
    "v",
    "zap-devel",
    "zap-encoder",
    "zap-log-level",
    "zap-stacktrace-level",
    "zap-time-encoding",
]
VALUES = {
    "bool": "false", "duration": "3s", "quantity": "10MiB", "int": "4", "ints": "8000,8001", "strings": "", "string": "x",
    "tls-min-version": "VersionTLS13", "zap-encoder": "json", "zap-log-level": "debug",
    "feature-gates": "flowControl", "endpoint-selector": "",
    "tls-cipher-suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}  # fmt: skip


def options(*arguments):
    return ServeOptions(**command.make_context("serve", list(arguments)).params)


def refusal(*arguments):
    with pytest.raises(click.UsageError) as caught:
        options(*arguments)
    return caught.value.format_message()


def test_the_table_has_every_flag_of_llm_d():
    assert sorted(flag.name for flag in FLAGS) == sorted(LLM_DS_41)
    assert len(LLM_DS_41) == 41


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_every_flag_is_taken_with_one_dash_and_two(dashes):
    given = {flag.name: VALUES.get(flag.name, VALUES[flag.kind]) for flag in FLAGS}
    context = command.make_context("serve", [f"{dashes}{name}={value}" for name, value in given.items()])

    assert context.meta[GIVEN] == given


def test_different_defaults_have_a_note():
    options = {name: option for option in command.params for name in option.opts}
    for flag in FLAGS:
        shown = options[f"--{flag.name}"].default
        usual = {"true": True, "false": False, "": None}.get(flag.default, flag.default)
        empty = usual is None and (shown in ("", ()) or not isinstance(shown, str | tuple))
        assert empty or str(shown) == str(usual) or flag.note or flag.name == "zap-encoder", flag.name


def test_flags_without_effect_are_named_with_their_reason():
    for flag in FLAGS:
        wanted = ("false" if "true" in flag.asks_nothing else "true") if flag.kind == "bool" else "x"
        clauses = without_effect({flag.name: wanted}, {})
        assert [clause.startswith(f"--{flag.name}: ") for clause in clauses] == [True] * (flag.effect is not Effect.SAME)
        assert [without_effect({flag.name: value}, {}) for value in flag.asks_nothing] == [()] * len(flag.asks_nothing)
        assert without_effect({flag.name: wanted}, {}, in_kubernetes=True) == (clauses if flag.effect is Effect.NONE else ())


def test_help_groups_options_and_hides_flags_without_effect():
    text = command.get_help(click.Context(command, info_name="serve"))

    for group in ServeOptions.__bases__:
        assert f"\n{group.__doc__.rstrip('.')}:\n" in text
    for flag in FLAGS:
        assert (f"\n  --{flag.name} " in text) == (flag.effect is not Effect.NONE), flag.name
    assert "have no effect" in text


def test_serve_has_at_most_45_options_of_its_own():
    own = [name for option in command.params for name in option.opts if name.startswith("--")]
    assert len(set(own) - {f"--{flag.name}" for flag in FLAGS}) <= 45


def test_variables_without_effect_are_named():
    found = without_effect({}, {"LATENCY_METRICS_INTERVAL_SEC": "5", "NAMESPACE": "prod", "ENABLE_EXPERIMENTAL_FLOW_CONTROL_LAYER": ""})

    assert found == ("LATENCY_METRICS_INTERVAL_SEC (environment): latencies are predicted by the server at PREDICTION_SERVER_URL",)


def test_removed_flags_name_their_replacement():
    for name, instead in removed_flags().items():
        said = refusal(f"--{name}=x")
        assert (said.split("; ")[0], said.endswith(f": {instead}")) == (f"endpick does not have --{name}", True)
    assert refusal("--epp-mode=x") == "endpick does not have --epp-mode; llm-d has it in a branch only, since 2026-08-22"


def test_an_unknown_flag_gets_a_suggestion():
    assert refusal("--grpc-prot=1") == "no such flag: --grpc-prot; did you mean '--grpc-port'?"
    assert refusal("--port=1") == "no such flag: --port; there is --grpc-port, --grpc-health-port, --metrics-port, --reuse-port"
    assert refusal("--wholly-unknown") == "no such flag: --wholly-unknown; see --help"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["-secure-serving"], True),
        (["--secure-serving=false"], False),
        (["-secure-serving=F"], False),
        (["--secure-serving=1"], True),
        (["--secure-serving", "config.yaml"], True),
    ],
)
def test_booleans_are_read_as_go_reads_them(arguments, value):
    assert options(*arguments).secure_serving is value


def test_booleans_do_not_take_the_next_word():
    read = options("--reuse-port", "config.yaml", "-grpc-port", "7", "--configText", "-x")

    assert (read.config, read.reuse_port, read.grpc_port, read.config_text) == ("config.yaml", True, 7, "-x")
    assert "'perhaps' is not a boolean" in refusal("--locked=perhaps")


def test_sizes_may_name_their_unit():
    for text, size in {"10MiB": 10 << 20, "25MB": 25_000_000, "64Mi": 64 << 20, "4KB": 4000, "512B": 512}.items():
        assert options(f"--grpc-max-recv-msg-size={text}").grpc_max_recv_msg_size == size


@pytest.mark.parametrize(
    ("arguments", "level", "form"),
    [
        ([], "info", "auto"),
        (["-v=1"], "info", "auto"),
        (["--v", "4"], "debug", "auto"),
        (["-v=5", "--zap-log-level=info", "--zap-encoder", "json"], "info", "json"),
        (["--zap-log-level=5", "--zap-devel=false"], "debug", "json"),
        (["--zap-log-level=panic", "--zap-devel=false", "--zap-encoder=console"], "error", "text"),
        (["-v=5", "--log-level=warning", "--zap-encoder=json", "--log-format=text"], "warning", "text"),
    ],
)
def test_log_level_and_format(arguments, level, form):
    read = options(*arguments)
    assert (log_level(read), log_format(read)) == (level, form)


def test_unknown_zap_level_is_wrong_usage():
    with pytest.raises(click.UsageError, match="'loud' is no --zap-log-level"):
        log_level(options("--zap-log-level=loud"))


def test_kubernetes_flags_reach_the_pool_settings(monkeypatch):
    monkeypatch.setenv("NAMESPACE", "prod")
    arguments = ["--endpoint-selector=app in (a,b)", "--endpoint-target-ports=8000,8001", "--endpoint-target-ports=8000"]

    assert pool_of(options(*arguments, "--kubeconfig=here")) == PoolSettings("", "prod", "", "app in (a,b)", (8000, 8001), "here")
    assert pool_of(options("--ha-enable-leader-election", "--pool-name=p")).leader_election


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pool-name=a", "--endpoint-selector=b=c", "--endpoint-target-ports=1"], "not both"),
        (["--endpoint-selector=b=c"], "needs 1 to 8 ports"),
        (["--endpoint-selector=b=c", "--endpoint-target-ports=1,2,3,4,5,6,7,8,9"], "needs 1 to 8 ports"),
        (["--endpoint-target-ports=http"], "'http' in --endpoint-target-ports is no port"),
    ],
)
def test_contradicting_pool_flags_are_wrong_usage(arguments, complaint):
    with pytest.raises(click.UsageError, match=complaint):
        pool_of(options(*arguments))


def test_unknown_cipher_suite_is_wrong_usage():
    with pytest.raises(click.UsageError, match="'TLS_NULL' is not a cipher suite"):
        settings_of(options("--tls-cipher-suites=TLS_NULL"))


def test_ports_end_at_65535():
    assert target_ports(["0,65535"]) == (0, 65535)
    with pytest.raises(PoolSettingsError):
        target_ports(["65536"])


def test_flags_reach_the_settings(tmp_path):
    settings = settings_of(
        options(
            "--pool-name=chat", "--disable-endpoint-subset-filter", "--emit-endpoint-scores", "--tls-min-version=VersionTLS13",
            "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256", "--enable-cert-reload=false",
            f"--metrics-cert-dir={tmp_path}", "--metrics-client-ca-file=ca.pem", "--metrics-staleness-threshold=700ms",
        )
    )  # fmt: skip

    assert (settings.pool_name, settings.sessions.respects_subset, settings.emits_scores) == ("chat", False, True)
    assert settings.metrics_staleness_seconds == 0.7
    tls, metrics_tls = settings.ext_proc.tls, settings.metrics_tls
    assert (tls.modern_only, tls.ciphers, tls.reload) == (True, "ECDHE-RSA-AES128-GCM-SHA256", False)
    assert (metrics_tls.certificate_file, str(metrics_tls.client_ca_file), metrics_tls.protocol) == (
        tmp_path / "tls.crt", "ca.pem", "http/1.1",
    )  # fmt: skip
    assert settings_of(options()).metrics_tls is None
