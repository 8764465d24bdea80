.PHONY: setup test slow lint quickstart

setup:        ## make .venv
	./scripts/setup_env.sh
test:         ## checks and tests
	./scripts/test.sh
slow:         ## the long tests
	./scripts/test.sh -m slow
lint:         ## format and check
	.venv/bin/ruff format . && .venv/bin/ruff check --fix . && .venv/bin/mypy && .venv/bin/lint-imports
quickstart:   ## the main job on the CPU
	./scripts/quickstart.sh
