sqlite3 a.db 'pragma journal_mode=wal; create table t(x); insert into t values (1),(2);'
(for i in 3 4 5; do sqlite3 -cmd '.timeout 20000' a.db "insert into t values ($i)"; done) &
for i in 6 7 8; do sqlite3 -cmd '.timeout 20000' a.db "insert into t values ($i)"; done
wait
sqlite3 a.db 'select count(*), sum(x) from t; vacuum; pragma integrity_check;'
