"""{{ cookiecutter._summaries[cookiecutter.kind] }}"""
