# SPDX-License-Identifier: Apache-2.0
# Stops an installation that would overwrite the package deep_ep of somebody else. FOLDER: where the packages go.
set(package $ENV{DESTDIR}${FOLDER}/deep_ep)
if(EXISTS ${package}/__init__.py)
  file(STRINGS ${package}/__init__.py ours REGEX "^\"\"\"deep_ep: .* on expar")
  if(NOT ours)
    message(FATAL_ERROR "${package} is not expar's deep_ep. Remove it (pip uninstall deep_ep), or configure with "
      "-DEXPAR_DEEP_EP=OFF, which installs expar without deep_ep")
  endif()
endif()
