#!/usr/bin/env bash
# Sees to it that the programs are here which tests start: the stores' servers, and a browser for pages.
# Where they are, it does nothing. They are installed for the tests alone: Debian's own services of them are not left running.
set -euo pipefail

packages=()
[ -n "$(type -P etcd)" ] || packages+=(etcd-server)
[ -e /usr/share/zookeeper/bin/zkServer.sh ] || packages+=(zookeeper)
[ -n "$(type -P openssl)" ] || packages+=(openssl)
[ -e /usr/bin/chromium ] || packages+=(chromium)
[ ${#packages[@]} -gt 0 ] || exit 0

wanted="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
if [ "$(id -u)" -ne 0 ] || [ -z "$(type -P apt-get)" ]; then
    echo "the tests need ${packages[*]}, which are not installed; run as root: $wanted" >&2
    exit 2
fi

# While this file says 101, no package starts a service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
echo "installing ${packages[*]}, which tests start"
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } \
    >/dev/null; then
    echo "could not install ${packages[*]}; run as root, and see why: $wanted" >&2
    exit 2
fi
# Nor at the next boot. An etcd that was here before was not touched.
if [ -d /run/systemd/system ] && [[ " ${packages[*]} " == *" etcd-server "* ]]; then
    systemctl --quiet disable --now etcd
fi
