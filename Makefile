.DEFAULT_GOAL := help
.PHONY: help setup check document test gpu triton bench clean
OUT ?= assay-report
# What `make check` judges: the built-in softmax and attention, and the two attentions of Hugging Face's Llama.
TARGETS ?= torch-softmax torch-log-softmax-exp torch-nn-softmax sdpa sdpa-math sdpa-flash hf-llama-eager hf-llama-sdpa
# Not in constraints.txt: torch for CUDA brings the triton that it was built with, and pins it.
TRITON ?= 3.9.0
export HF_HUB_OFFLINE := 1
unexport PYTHONDONTWRITEBYTECODE

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

gpu: ## what needs a CUDA device: its tests, all built-in implementations judged and timed there; says so where there is none
	@OUT=$(OUT) bash .ci/gpu

triton: setup ## install triton, which setup leaves out (286 MB), and run the tests of its kernels, interpreted on the CPU
	@.venv/bin/python -c 'import triton' 2>/dev/null || .venv/bin/python -m pip install --quiet --no-compile triton==$(TRITON)
	@OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/impls/test_triton.py tests/impls/test_triton_compiles.py

bench: setup ## measure what the harness itself costs (bench/soak.py, costs.py and benign.py say how they are run)
	@for file in $(filter-out bench/soak.py bench/costs.py bench/benign.py,$(wildcard bench/*.py)); do [ -e "$$file" ] || continue; echo "$$file"; .venv/bin/python "$$file" || exit 1; done

clean: ## remove what the other targets made, the report and .venv too
	rm -rf .venv build assay-report assay-report-document *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
