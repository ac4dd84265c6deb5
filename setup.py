"""All that pyproject.toml cannot say: the wheel holds the notebooks and the manifests, which lie beside the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class WithNotebooks(build_py):
    """Copies notebooks/ and data_manifests/ into the package, where an installed sparsepipe looks for them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # then they are found where they are
            for path in self._beside():
                target = Path(self.build_lib) / "sparsepipe" / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        beside = [str(Path(self.build_lib) / "sparsepipe" / path.relative_to(ROOT)) for path in self._beside()]
        return [*super().get_outputs(include_bytecode), *beside]

    def _beside(self) -> list[Path]:
        notebooks = ROOT.glob("notebooks/**/*.ipynb")
        claims = ROOT.glob("notebooks/claims.toml")
        manifests = ROOT.glob("data_manifests/**/*.*")
        found = (path for path in (*notebooks, *claims, *manifests) if path.is_file())
        return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)


setup(cmdclass={"build_py": WithNotebooks})
