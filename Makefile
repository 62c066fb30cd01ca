# SPDX-License-Identifier: Apache-2.0
# Two commands show that it works: run and test. The others are for development. CMake does the building.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.PHONY: release run test test-gpu bench asan tsan fuzz nightly soak docs install uninstall wheel deb format lint clean

release:
	scripts/setup.sh build
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)

# The tool alone: no tests, benchmarks of MPI, examples or man pages, and what they are built with need not be there.
run:
	scripts/setup.sh run
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target expar_command
	build/release/bin/expar demo
	@echo; echo "The same as two nodes of four ranks, with a network between them:"; echo
	build/release/bin/expar demo --nodes 2 --bytes 24

# Configured after the packages are there: the tests and the MPI comparison are built with what is found.
test:
	scripts/setup.sh test
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)
	ctest --preset release

# The tests that need a GPU; the others are in test. With fewer GPUs than ranks several ranks share one.
test-gpu:
	scripts/setup.sh test
	cmake --preset release -DEXPAR_READY_TEST_KERNELS=ON >/dev/null
	cmake --build --preset release -j $(JOBS)
	scripts/gpu.sh test build/release

bench:
	scripts/setup.sh test
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)
	scripts/bench.sh build/release build/bench

tsan: BUILT = threads_tests
asan tsan:
	scripts/setup.sh test
	cmake --preset $@ >/dev/null
	cmake --build --preset $@ -j $(JOBS) --target $(or $(BUILT),all)
	ctest --preset $@

# FUZZ_SECONDS for each reader of files and frames that others wrote.
fuzz: FUZZ_SECONDS ?= 10
fuzz:
	scripts/setup.sh fuzz
	cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz -j $(JOBS)
	scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS)

# Thousands of random rounds, the soak, ten minutes for each fuzzer, and valgrind: about two hours.
nightly:
	scripts/setup.sh lint fuzz deb chroot
	cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz -j $(JOBS)
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)
	scripts/nightly.sh build/release

soak:
	scripts/setup.sh test
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target soak_calls
	build/release/tests/soak_calls threads
	build/release/tests/soak_calls processes

# The site of the documentation: build/release/site/html. A warning is an error.
docs:
	scripts/setup.sh run docs
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target site

# After `make run` most of it is not built yet. The site is left out where there is no Sphinx. The loader's cache must
# learn of the library, if it is writable.
install: release
	scripts/setup.sh docs
	if command -v sphinx-build >/dev/null; then $(MAKE) docs; fi
	cmake --install build/release --prefix $(PREFIX)
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig

uninstall:
	cmake --build build/release --target uninstall

# Makes the wheels and the source distribution in build/dist: expar, for this machine's glibc or a later one, with the
# library and the tool inside; and expar-deep-ep, for any machine.
wheel:
	scripts/setup.sh build wheel
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target expar expar_command
	scripts/wheel.sh build/release build/dist wheel deep_ep sdist

# Makes the Debian packages libexpar0.1, libexpar-dev, expar and python3-expar in build/deb.
deb:
	scripts/setup.sh deb
	cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS) --target expar expar-shmem expar-nvshmem expar_command manual manual_calls completion
	scripts/deb.sh build/release build/deb

format:
	scripts/setup.sh lint
	find src include tools bench examples tests -name '*.[ch]' -o -name '*.cpp' | xargs clang-format -i

lint:
	scripts/setup.sh lint
	cmake --preset release >/dev/null
	scripts/lint.sh build/release

clean:
	rm -rf build
