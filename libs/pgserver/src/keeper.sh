# Stops a shared test server when nobody uses it any more. Started detached by the first user; the argument is the
# folder. Standard input is the open file that carries the keeper's own lock, which says that a keeper is alive; it is
# let go while the users' lock is still held, so whoever gets the users' lock next sees that there is none.
dir=$1
data=$dir/data
trap '' HUP INT TERM
exec 9>>"$dir/users.lock"

runs_here() {
    tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -Fxq -- "$data"
}

# Every user holds the lock shared, so it is free once nobody is left. The pause lets the next test binary of the same
# run find the server still there.
while :; do
    flock -x 9 </dev/null || exit 1
    flock -u 9 </dev/null
    sleep 3 </dev/null 9>&-
    flock -x -n 9 </dev/null && break
done

pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
    for step in INT:300 QUIT:100 KILL:100; do
        runs_here || break
        kill -s "${step%:*}" "$pid"
        tenths=${step#*:}
        while [ "$tenths" -gt 0 ] && runs_here; do
            sleep 0.1 </dev/null
            tenths=$((tenths - 1))
        done
    done
    runs_here && exit 1
fi
rm -rf -- "$data" "$dir/password"
exec </dev/null
