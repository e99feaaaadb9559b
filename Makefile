.DEFAULT_GOAL := help
.PHONY: help setup check document test gpu bench clean
OUT ?= assay-report
# What `make check` judges: the built-in softmax and attention, and the two attentions of Hugging Face's Llama.
TARGETS ?= torch-softmax torch-log-softmax-exp torch-nn-softmax sdpa sdpa-math sdpa-flash hf-llama-eager hf-llama-sdpa
export HF_HUB_OFFLINE := 1

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## make .venv with the pinned dependencies (about a minute the first time, nothing after that)
	@bash .ci/setup

check: setup ## judge the built-in attention and softmax and Hugging Face's Llama attention; the report goes to OUT
	@code=0; .venv/bin/assay check $(TARGETS) --out $(OUT) || code=$$?; \
	if [ -e $(OUT)/report.html ]; then echo "report: $(abspath $(OUT))/report.html"; fi; exit $$code

document: setup ## the statements as a site, with their status in the report of `make check` (or of OUT); in OUT-document
	@.venv/bin/assay document $(OUT) --findings reports/findings --out $(OUT)-document

test: ## lint, types and the tests of the machinery: what must hold before a change lands
	@bash .ci/run

gpu: setup ## the part of the tests that needs a CUDA device; says so and does nothing where there is none
	@if .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then .venv/bin/python -m pytest -q -m gpu tests; \
	else echo "gpu: skipped, torch sees no CUDA device"; fi

bench: setup ## measure what the harness itself costs
	@for file in bench/*.py; do [ -e "$$file" ] || continue; echo "$$file"; .venv/bin/python "$$file" || exit 1; done

clean: ## remove what the other targets made, the report and .venv too
	rm -rf .venv build assay-report assay-report-document *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
