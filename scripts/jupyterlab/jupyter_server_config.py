"""What lab.sh has JupyterLab read beside the user's own settings: live figures follow its theme (custom.css)."""

from pathlib import Path

from jupyter_core.paths import jupyter_config_dir

HERE = Path(__file__).resolve().parent

settings = get_config()  # noqa: F821 - traitlets, which reads this file, has it
settings.LabApp.custom_css = True
# A custom.css of the user's own comes first, and then is the only one.
settings.ServerApp.tornado_settings = {"static_custom_path": [str(Path(jupyter_config_dir()) / "custom"), str(HERE)]}
