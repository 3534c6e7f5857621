# shellcheck shell=bash
# What the scripts in this folder share; to be sourced.

# shellcheck disable=SC2034  # used by the scripts that source this
root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034  # used by the scripts that source this
cores=$(nproc)

# Clones in different folders share what ccache keeps.
export CCACHE_BASEDIR=$root_dir CCACHE_NOHASHDIR=1

# Settings under which Open MPI runs several ranks on any one host: a container run as root, fewer
# cores than ranks, no permission to read a peer's memory. Ranks are not bound to cores, because
# each has threads of its own.
export_mpi_settings() {
  if [[ $EUID -eq 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1
  export OMPI_MCA_hwloc_base_binding_policy=none
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
}
