{% include cookiecutter.kind ~ '/test_plugin.py' %}
