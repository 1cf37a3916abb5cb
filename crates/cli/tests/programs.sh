# Real programs in the directory $D of a mount. Prints what it does; ends at the first thing that fails.
set -eu
mkdir -p "$D"
cd "$D"
local=$(mktemp -d)
trap 'rm -rf "$local"' EXIT

echo "== files of odd kinds"
mkdir kinds
cd kinds
echo one > a
ln a b
ln -s a c
mkfifo pipe
(cat pipe > got) & echo through > pipe
wait
test "$(cat got)" = through
test "$(cat c)" = one
test "$(stat -c %h a)" = 2
echo two >> b
test "$(wc -l < a)" = 2
chmod 640 a
test "$(stat -c %a b)" = 640
touch -d '2001-02-03 04:05:06 UTC' a
test "$(stat -c %Y b)" = 981173106
mv a d
test ! -e a
truncate -s 1000000 d
test "$(stat -c %s b)" = 1000000
exec 3< d
rm b c d
test "$(head -c 3 <&3)" = one
exec 3<&-
mkdir full
touch full/x
if rmdir full 2> /dev/null; then exit 1; fi
cd ..
rm -r kinds

echo "== a large file"
dd if=/dev/urandom of="$local/large" bs=1M count=20 2> /dev/null
cp "$local/large" large
cmp large "$local/large"
printf changed | dd of=large bs=1 seek=5000000 conv=notrunc 2> /dev/null
printf changed | dd of="$local/large" bs=1 seek=5000000 conv=notrunc 2> /dev/null
cmp large "$local/large"
rm large

echo "== configure and make"
mkdir -p "$local/hello-1.0/src"
cat > "$local/hello-1.0/configure" <<'CONFIGURE'
#!/bin/sh
set -e
here=$(dirname "$0")
printf 'checking whether the C compiler works... '
echo 'int main(void) { return 0; }' > conftest.c
${CC:-cc} -o conftest conftest.c
./conftest
rm -f conftest conftest.c
echo yes
echo '#define GREETING "hello from a mount"' > config.h
sed "s,@CC@,${CC:-cc},g; s,@srcdir@,$here,g" "$here/Makefile.in" > Makefile
echo 'config.status: creating Makefile'
CONFIGURE
chmod +x "$local/hello-1.0/configure"
{
    echo 'CC = @CC@'
    echo 'OBJECTS = main.o a.o b.o c.o'
    echo 'hello: $(OBJECTS)'
    printf '\t$(CC) -o $@ $(OBJECTS)\n'
    echo '%.o: @srcdir@/src/%.c config.h'
    printf '\t$(CC) -I. -O1 -c -o $@ $<\n'
} > "$local/hello-1.0/Makefile.in"
for part in a b c; do
    echo "int $part(int x) { return x + 1; }" > "$local/hello-1.0/src/$part.c"
done
cat > "$local/hello-1.0/src/main.c" <<'MAIN'
#include <stdio.h>
#include "config.h"
int a(int), b(int), c(int);
int main(void) { printf("%s %d\n", GREETING, a(b(c(0)))); return 0; }
MAIN
tar -czf "$local/hello.tar.gz" -C "$local" hello-1.0
tar -xzf "$local/hello.tar.gz"
cd hello-1.0
./configure
make -j2
test "$(./hello)" = "hello from a mount 3"
touch -d '+1 minute' src/b.c
make | grep -q 'b\.o'
cd ..

echo "== git"
mkdir repository
cd repository
git init -q -b main .
git config user.email someone@example.org
git config user.name someone
for i in $(seq 1 20); do
    mkdir "d$i"
    for j in $(seq 1 15); do
        echo "file $i $j" > "d$i/f$j"
    done
done
git add .
git commit -q -m first
git mv d1 renamed
git rm -q -r d2
echo more >> d3/f3
git commit -q -a -m second
cd ..
git clone -q repository clone
git -C clone fsck --strict
test "$(git -C clone ls-files | wc -l)" = 285
test -z "$(git -C clone status --porcelain)"
git -C repository gc -q
git -C repository fsck

echo "== sqlite3"
sqlite3 base.db 'pragma journal_mode=delete; create table t(a integer primary key, b text);'
for i in $(seq 1 10); do
    sqlite3 base.db "begin; insert into t(b) select hex(randomblob(50)) from generate_series(1,100); commit;"
done
test "$(sqlite3 base.db 'select count(*) from t')" = 1000
test "$(sqlite3 base.db 'pragma integrity_check')" = ok
test ! -e base.db-journal
sqlite3 base.db 'begin; delete from t; rollback;'
test "$(sqlite3 base.db 'select count(*) from t')" = 1000

echo "== cp -a and back"
mkdir "$local/tree"
for i in $(seq 1 20); do
    mkdir "$local/tree/$i"
    for j in $(seq 1 20); do
        head -c $((i * j * 37)) /dev/urandom > "$local/tree/$i/$j"
    done
    ln -s "$i" "$local/tree/link-$i"
done
cp -a "$local/tree" tree
diff -r --no-dereference "$local/tree" tree
cp -a tree "$local/back"
diff -r --no-dereference "$local/tree" "$local/back"
list() {
    (cd "$1" && find . ! -type d -printf '%p %m %s %T@ %l\n' | sort)
}
test "$(list tree)" = "$(list "$local/tree")"

if command -v rsync > /dev/null; then
    echo "== rsync there and back"
    rsync -a "$local/tree/" there/
    rsync -a there/ "$local/rsynced/"
    diff -r --no-dereference "$local/tree" "$local/rsynced"
    test -z "$(rsync -a --checksum --itemize-changes "$local/tree/" there/)"
fi

echo "== rm -r"
rm -r tree hello-1.0 repository clone
test ! -e tree
cd ..
echo "all programs work"
