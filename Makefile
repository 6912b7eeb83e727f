# kvmill - one non-recursive Makefile; `make help` lists the targets.
#
#   build/$(V)/   everything a build makes; V = release (default), debug, asan, tsan,
#                 cov, fuzz, or any other name, which means release flags in a folder of
#                 its own
#   FLOORS="base kernels"   build only these folders, and not the program
#   T="unit/ fuzz_json"     only the tests whose path contains one of these words
#   WERROR=1                warnings are errors (continuous integration)
#   VERBOSE=1               show whole commands

V      ?= release
B      := build/$(V)
FLOORS := base kernels models translators schema reports jobs scheduler workers
prefix ?= /usr/local

ifeq ($(origin CC),default)
CC := gcc
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: FORCE
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

# --- packages: build/pkg.mk is remade, and read again, whenever scripts/deps changes.
# Only `make run`, `test` and their kin install what is missing; others say what to do.
INSTALLING := $(filter deps run fleet test check unit fault chaos real bench asan tsan cov,$(MAKECMDGOALS))
NEEDS_PKG  := $(filter-out help clean layers format format-check,$(or $(MAKECMDGOALS),all))
ifneq ($(NEEDS_PKG),)
include build/pkg.mk
endif
build/pkg.mk: scripts/deps
	@mkdir -p build
	@scripts/deps $(if $(INSTALLING),,--check)
	@scripts/deps --make > $@

# --- flags
WARN := -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow -Wvla \
        -Wundef -Wdouble-promotion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes \
        -Wcast-qual -Wpointer-arith -Wwrite-strings -Wswitch-enum
ifeq ($(WERROR),1)
WARN += -Werror
endif
OPT := -O3
SAN :=
ifeq ($(V),debug)
OPT := -Og
else ifeq ($(V),asan)
OPT := -O1
SAN := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else ifeq ($(V),tsan)
OPT := -O1
SAN := -fsanitize=thread -fno-omit-frame-pointer
else ifeq ($(V),cov)
OPT := -O0
SAN := --coverage
else ifeq ($(V),fuzz)
CC  := clang
OPT := -O1
SAN := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
endif
# what tests need under a sanitizer, however they are started
ifneq ($(filter asan tsan,$(V)),)
export KVM_TEST_TIMEOUT ?= 3600
endif
ifeq ($(V),tsan)
export TSAN_OPTIONS ?= suppressions=$(CURDIR)/tests/tsan.supp
endif
CPPFLAGS := -I. -D_POSIX_C_SOURCE=200809L $(PKG_CFLAGS)
CFLAGS   := -std=c11 -fno-common -ffp-contract=off -pthread -g $(OPT) $(SAN) $(WARN)
LDFLAGS  := -pthread $(SAN)
LDLIBS   := $(PKG_LIBS) -lm
ifeq ($(VERBOSE),)
Q = @echo '  $(or $(if $(filter %.o,$@),CC),$(if $(filter %.a,$@),AR),LD) $(@:build/%=%)';
endif
COMPILE   = $(CC) $(CPPFLAGS) $(CFLAGS) $(VECTOR) -MMD -MP -c

# --- sources
# kvmill-rank, and what knows MPI: nothing else is linked to it
RANK_SRC  := workers/gang_mpi.c workers/rank_main.c
LIB_SRC   := $(filter-out $(RANK_SRC),$(sort $(foreach d,$(FLOORS),$(wildcard $(d)/*.c $(d)/*/*.c))))
CLI_SRC   := $(if $(filter file,$(origin FLOORS)),$(sort $(wildcard cli/*.c)))
HELP_SRC  := $(sort $(wildcard tests/support/*.c))
TEST_SRC  := $(sort $(wildcard tests/*/test_*.c))
BENCH_SRC := $(sort $(wildcard tests/bench/bench_*.c))
FUZZ_SRC  := $(sort $(wildcard tests/fuzz/fuzz_*.c))
ALL_SRC   := $(LIB_SRC) $(RANK_SRC) $(CLI_SRC) $(HELP_SRC) $(TEST_SRC) $(BENCH_SRC) $(FUZZ_SRC) \
             $(wildcard tests/fuzz/replay.c)
ifneq ($(T),)
chosen    = $(foreach t,$(1),$(if $(strip $(foreach w,$(T),$(findstring $(w),$(t)))),$(t)))
TEST_SRC := $(call chosen,$(TEST_SRC))
FUZZ_SRC := $(call chosen,$(FUZZ_SRC))
BENCH_SRC := $(call chosen,$(BENCH_SRC))
endif

LIB     := $(B)/libkvmill.a
SUPPORT := $(B)/libsupport.a
BIN     := $(if $(filter cli/main.c,$(CLI_SRC)),$(B)/kvmill $(B)/kvmill-rank)
obj      = $(1:%.c=$(B)/%.o)
LIB_OBJ := $(call obj,$(LIB_SRC)) $(B)/build_info.o
TESTS   := $(TEST_SRC:%.c=$(B)/%)
BENCHES := $(BENCH_SRC:%.c=$(B)/%)
FUZZERS := $(FUZZ_SRC:%.c=$(B)/%)
GANGS   := $(filter $(B)/tests/gang/%,$(TESTS)) # tests that are rank programs too

## all: the library and the programs (default)
.PHONY: all
all: $(LIB) $(BIN)

# Vector files are compiled for their instruction set and chosen at run time.
$(B)/kernels/%_avx2.o:   VECTOR := -march=x86-64-v3
$(B)/kernels/%_avx512.o: VECTOR := -march=x86-64-v4
$(B)/kernels/%_bf16.o:   VECTOR := -march=x86-64-v4 -mavx512bf16

$(call obj,$(RANK_SRC) $(wildcard tests/gang/*.c)): CPPFLAGS += $(MPI_CFLAGS)

# The scripts that migrations.c copies in are no includes: the compiler does not list them.
$(B)/schema/migrations.o: $(wildcard schema/migrations/*.sql)

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(Q)$(COMPILE) -o $@ $<
$(B)/build_info.o: $(B)/build_info.c $(B)/flags
	$(Q)$(COMPILE) -o $@ $<
$(LIB): $(LIB_OBJ) $(B)/floors
$(SUPPORT): $(call obj,$(HELP_SRC))
$(LIB) $(SUPPORT):
	@rm -f $@
	$(Q)ar rcD $@ $(filter %.o,$^) && ranlib -D $@
$(B)/kvmill: $(call obj,$(CLI_SRC)) $(LIB)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(B)/kvmill-rank: $(call obj,$(RANK_SRC)) $(LIB)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(MPI_LIBS)
$(GANGS): $(B)/workers/gang_mpi.o
$(GANGS): LDLIBS := $(B)/workers/gang_mpi.o $(LIB) $(LDLIBS) $(MPI_LIBS)
$(TESTS): $(B)/%: $(B)/%.o $(SUPPORT) $(LIB)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter-out $(B)/workers/gang_mpi.o,$^) -lcmocka $(LDLIBS)
$(BENCHES): $(B)/%: $(B)/%.o $(SUPPORT) $(LIB)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
ifeq ($(V),fuzz)
$(FUZZERS): $(B)/%: $(B)/%.o $(LIB)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)
else
$(FUZZERS): $(B)/%: $(B)/%.o $(B)/tests/fuzz/replay.o $(LIB)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
endif
$(B)/tests/fuzz/fuzz_hub: $(B)/cli/hub.o # of the floor that no other is linked with
$(B)/tests/fuzz/fuzz_hub: LDLIBS := $(LIB) $(LDLIBS)
.SECONDARY:

# Objects depend on the flags they were built with, the library on the floors that it has
# (objects that are only missing remake nothing), and the program knows its commit.
$(B)/floors: FORCE
	@mkdir -p $(@D)
	@echo '$(FLOORS)' | cmp -s - $@ || echo '$(FLOORS)' > $@
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS)' | cmp -s - $@ || \
	    echo '$(CC) $(CPPFLAGS) $(CFLAGS)' > $@
$(B)/build_info.c: FORCE
	@mkdir -p $(@D)
	@scripts/build_info '$(CC)' '$(OPT) $(SAN)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

-include $(patsubst %.c,$(B)/%.d,$(ALL_SRC)) $(B)/build_info.d

## test: build and run every test (T=words: only those whose path has one)
.PHONY: test check unit fault
test check: build/tests-ready $(BIN) $(TESTS) $(FUZZERS)
	@tests/run $(B) '$(T)'
build/tests-ready: scripts/deps
	@scripts/deps --tests
	@touch $@
## unit: only tests/unit
unit:
	@$(MAKE) test T=tests/unit/
## fault: only tests/fault (fails the nth call of the operating system for every n)
fault:
	@$(MAKE) test T=tests/fault/
## chaos: every fault as often as docs/reliability.md says, and its table (T=words)
.PHONY: chaos
CHAOS := tests/crash/ tests/chaos/ tests/gang/ tests/fault/test_queue_fault tests/fault/test_line_fault \
    tests/unit/test_job_races \
    tests/fault/test_catalogue_fault tests/unit/test_catalogue tests/unit/test_schedule
chaos:
	@mkdir -p $(B) && rm -f $(B)/chaos.jsonl
	@KVMILL_CHAOS=1 KVMILL_CHAOS_TABLE=$(CURDIR)/$(B)/chaos.jsonl KVM_TEST_TIMEOUT=3600 \
	    $(MAKE) test T='$(or $(T),$(CHAOS))'; bad=$$?; \
	    scripts/chaos_table $(B)/chaos.jsonl && exit $$bad
## asan tsan: all tests under the address+undefined / thread sanitizer
.PHONY: asan tsan cov
asan tsan:
	@$(MAKE) V=$@ test
## cov: line coverage per source file
cov:
	@$(MAKE) V=cov test
	@scripts/coverage build/cov $(LIB_SRC)
## fuzz: run every fuzzer for FUZZ_SECONDS (60) each from its corpus (needs clang)
.PHONY: fuzz fuzzers
FUZZ_SECONDS ?= 60
fuzz:
	@$(MAKE) V=fuzz fuzzers
	@tests/fuzz/run $(FUZZ_SECONDS) $(FUZZ_SRC:%.c=build/fuzz/%)
fuzzers: $(FUZZERS)
## bench: build and run the benches (T=words: only those)
.PHONY: bench
bench: $(BENCHES)
	@for b in $(BENCHES); do \
	    echo "== $$b"; $$b || exit 1; done

## run: the example pair, both directions, from spec to report
.PHONY: run real
run: $(BIN)
	@$(B)/kvmill run tests/zoo/pair.yaml
## fleet: PostgreSQL, Redis, a scheduler and two workers on this machine; three models, six pairs
.PHONY: fleet
fleet: build/tests-ready $(BIN)
	@scripts/fleet $(B)/kvmill tests/zoo/family.yaml
## real: the whole job on two checkpoints of yours: make real SRC=DIR TGT=DIR [TEXT=FILE]
real: $(BIN)
	@scripts/real $(B)/kvmill '$(SRC)' '$(TGT)' '$(TEXT)'

## deps: install the Debian packages that are missing
.PHONY: deps
deps:
	@scripts/deps --tests

## layers: no include points down the list of floors, no banned call
.PHONY: layers lint format format-check
layers:
	@tests/layers.sh
	@scripts/banned
## lint: clang-format and clang-tidy over every file
lint: format-check build/pkg.mk
	@scripts/lint '$(CPPFLAGS) $(MPI_CFLAGS) -std=c11' $(ALL_SRC)
format-check:
	@scripts/format-check
## format: clang-format every file in place
format:
	@scripts/format-check --fix

## compile_commands.json: for editors and clang tools
compile_commands.json: Makefile FORCE
	@scripts/compile_commands '$(CC) $(CPPFLAGS) $(MPI_CFLAGS) $(CFLAGS) -c' $(ALL_SRC) > $@

## install: the programs, their suites, manual and completion (DESTDIR= prefix=/usr/local)
.PHONY: install clean help
SHARE = $(DESTDIR)$(prefix)/share
install: $(BIN)
	install -Dm755 $(B)/kvmill '$(DESTDIR)$(prefix)/bin/kvmill'
	install -Dm755 $(B)/kvmill-rank '$(DESTDIR)$(prefix)/bin/kvmill-rank'
	install -Dm644 docs/kvmill.1 '$(SHARE)/man/man1/kvmill.1'
	install -Dm644 completions/kvmill.bash '$(SHARE)/bash-completion/completions/kvmill'
	install -d '$(SHARE)/kvmill/suites'
	install -m644 jobs/suites/* '$(SHARE)/kvmill/suites'
## clean: remove build/
clean:
	rm -rf build
## help: this list
help:
	@sed -n 's/^## \([^:]*\): /  \1\t/p' Makefile | expand -t 26
