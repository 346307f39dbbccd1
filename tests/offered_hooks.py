"""The hook objects of the fixture project `hook-objects`: targets by name."""

from __future__ import annotations

HOOK_OBJECTS = {
    "hooks.first": "hook_objects.recording:FIRST",
    "hooks.second": "hook_objects.recording:SECOND",
    "hooks.eager": "hook_objects.recording:EAGER",
    "hooks.eager-again": "hook_objects.recording:EAGER",
    "hooks.late": "hook_objects.recording:Late",
    "hooks.around": "hook_objects.recording:Around",
    "hooks.rules": "hook_objects.rules:HouseRules",
    "hooks.module": "hook_objects.as_module",
    "hooks.faulty": "hook_objects.faulty:Faulty",
    "hooks.faulty-observer": "hook_objects.faulty:FaultyObserver",
    "hooks.faulty-wrapper": "hook_objects.faulty:FaultyWrapper",
    "hooks.quitter": "hook_objects.faulty:Quitter",
    "hooks.slow": "hook_objects.faulty:Slow",
    "hooks.uncountable": "hook_objects.uncountable:Uncountable",
    "hooks.everything": "hook_objects.watching:Everything",
    "hooks.sleepy": "hook_objects.watching:Sleepy",
    "hooks.wrapping": "hook_objects.watching:Around",
    "hooks.misspelt": "hook_objects.wrong:Misspelt",
    "hooks.arguments": "hook_objects.wrong:Arguments",
    "hooks.wrapper": "hook_objects.wrong:Wrapper",
    "hooks.asynchronous": "hook_objects.wrong:Asynchronous",
    "hooks.none": "hook_objects.wrong:NoHooks",
    "hooks.unconstructible": "hook_objects.wrong:Unconstructible",
    "hooks.missing": "hook_objects.missing:Nothing",
}
