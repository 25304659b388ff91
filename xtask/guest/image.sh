#!/bin/sh
# Makes a bare Debian tree ($1) into the test guest's: the users, and in their
# homes what an attacker would look for. Run by mmdebstrap as its last step.
set -eu
root=$1

chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash --comment Developer dev
chroot "$root" passwd --quiet --delete root

# Every secret says that it is none, and where it is from.
home() { # home DIRECTORY NAME
	mkdir -p "$1/.ssh" "$1/.aws" "$1/.config/gh" "$1/.docker"
	chmod 700 "$1" "$1/.ssh" "$1/.aws" "$1/.docker"
	cat >"$1/.ssh/id_ed25519" <<-END
		-----BEGIN OPENSSH PRIVATE KEY-----
		DECOY-SSH-KEY-OF-$2
		-----END OPENSSH PRIVATE KEY-----
	END
	echo "ssh-ed25519 DECOY-SSH-PUBLIC-KEY-OF-$2 $2@sandbox-vm" >"$1/.ssh/id_ed25519.pub"
	echo "192.0.2.1 ssh-ed25519 DECOY-HOST-KEY" >"$1/.ssh/known_hosts"
	cat >"$1/.aws/credentials" <<-END
		[default]
		aws_access_key_id = DECOYKEYID
		aws_secret_access_key = DECOY-AWS-SECRET-OF-$2
	END
	echo "machine example.com login $2 password DECOY-NETRC-PASSWORD-OF-$2" >"$1/.netrc"
	echo "https://$2:DECOY-GIT-PASSWORD-OF-$2@example.com" >"$1/.git-credentials"
	cat >"$1/.config/gh/hosts.yml" <<-END
		github.com:
		    user: $2
		    oauth_token: DECOY-GH-TOKEN-OF-$2
	END
	cat >"$1/.docker/config.json" <<-END
		{"auths": {"registry.example.com": {"auth": "DECOY-DOCKER-AUTH-OF-$2"}}}
	END
	cat >"$1/.gitconfig" <<-END
		[user]
		    name = $2
		    email = $2@example.com
		[init]
		    defaultBranch = main
	END
	chmod 600 "$1/.ssh/id_ed25519" "$1/.aws/credentials" "$1/.netrc" "$1/.git-credentials" \
		"$1/.config/gh/hosts.yml" "$1/.docker/config.json"
	for file in .bashrc .profile; do
		[ -e "$1/$file" ] || cp "$root/etc/skel/$file" "$1/$file"
	done
}
home "$root/home/dev" dev
home "$root/root" root
chroot "$root" chown -R dev:dev /home/dev

echo sandbox-vm >"$root/etc/hostname"
cat >"$root/etc/hosts" <<-END
	127.0.0.1 localhost sandbox-vm
	::1 localhost ip6-localhost
END
: >"$root/etc/resolv.conf"
mkdir -p "$root/mnt/put" "$root/usr/lib/modules"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
